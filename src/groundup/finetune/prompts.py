"""Prompts as samples: each is given to the model several times, and its completions are a group."""

import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson
import torch

from groundup.checkpoint.companions import Companions
from groundup.core.errors import ConfigError, DataError
from groundup.core.log import logger
from groundup.corpus.line_blocks import MalformedRecord
from groundup.corpus.records import RecordReader
from groundup.corpus.source_ranges import SourceRange
from groundup.corpus.sources import find_source_files
from groundup.tokens.sampling.shuffle import samples_at
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.train.config import TrainConfig
from groundup.train.data_loader import Batch
from groundup.train.init_weights import open_start
from groundup.train.loss import IGNORE
from groundup.train.run_data import RunData

if TYPE_CHECKING:
    from groundup.finetune.grpo import Grpo

PromptForm = Literal["auto", "chat", "text"]
"""How a prompt that is a text is put to the model."""

_FIELDS = {"role", "content"}

SAMPLE = "sample"
"""Extra tensor of a batch: the index of each completion among all of the run."""


@dataclasses.dataclass(frozen=True, eq=False)
class Prompt:
    """What the model is to complete.

    Attributes:
        ids: What it reads.
        prompt: As in the record: a text or messages.
        record: The whole record, which rewards are given.
        where: ``file:line``.
    """

    ids: Sequence[int]
    prompt: Any
    record: Mapping[str, Any]
    where: str


class PromptSplit:
    """Prompts in a seeded order; see ``Split`` of ``groundup.train.run_data``.

    Sample i of the run is completion ``i % group_size`` of a prompt. Of ``updates`` batches one behind the
    other all have the samples of the first.

    Args:
        prompts: At least one.
        group_size: Completions of a prompt.
        batch_size: Completions of a step; a multiple of the group.
        updates: Steps that learn from the same completions.
        seed: Of the order.
        name: For messages.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        batch_size: int,
        updates: int,
        seed: int,
        name: str,
    ) -> None:
        self.prompts = prompts
        self.name = name
        self.num_samples = len(prompts) * group_size * updates
        self.num_tokens = group_size * updates * sum(len(prompt.ids) for prompt in prompts)
        self._group_size = group_size
        self._batch_size = batch_size
        self._updates = updates
        self._seed = seed

    def describe(self) -> str:
        """Returns how many prompts there are, in a line."""
        lengths = [len(prompt.ids) for prompt in self.prompts]
        return (
            f"{self.name}: {len(lengths):,} prompts of {min(lengths)} to {max(lengths)} tokens,"
            f" {self._group_size} completions of each"
        )

    def prompt_of(self, sample: int) -> Prompt:
        """Returns the prompt of a sample."""
        index = sample // self._group_size
        number = samples_at(index, 1, size=len(self.prompts), seed=self._seed)[0]
        return self.prompts[int(number)]

    def read(self, first_sample: int, count: int, *, ordered: bool = False) -> Batch:
        """Returns the numbers of samples alone, which are completed when their step begins; see ``Split``."""
        step, offset = divmod(first_sample, self._batch_size)
        first = step // self._updates * self._batch_size + offset
        nothing = torch.full((count, 1), IGNORE)
        return Batch(
            tokens_BT=torch.zeros_like(nothing),
            targets_BT=nothing,
            extra={SAMPLE: torch.arange(first, first + count)},
        )

    def origins(self, index: int) -> list[dict[str, Any]]:
        """See ``Split.origins``."""
        step, offset = divmod(index, self._batch_size)
        prompt = self.prompt_of(step // self._updates * self._batch_size + offset)
        source, _, line = prompt.where.rpartition(":")
        return [{"source": source, "line": int(line), "length": len(prompt.ids)}]


def read_prompts(
    path: Path, encode: Callable[[Any], Sequence[int]], *, most_tokens: int
) -> tuple[list[Prompt], str]:
    """Reads the records of a file or folder; what is left out is counted by reason, with its lines.

    Args:
        path: JSON lines, plain or compressed, or Parquet, each record with a ``prompt``: a text or messages.
        encode: Turns it into ids; raises ``MalformedRecord`` where it cannot.
        most_tokens: Of a prompt.

    Returns:
        The prompts, and a hash of their ids and records.

    Raises:
        DataError: There is no file, or no prompt in it.
    """
    prompts: list[Prompt] = []
    left_out: dict[str, list[str]] = collections.defaultdict(list)
    found = hashlib.sha256(b"prompts 1")
    for file in find_source_files([path]):
        for record in RecordReader(SourceRange(file, file.size_bytes), "prompt"):
            where = f"{file.path}:{record.line}"
            try:
                if record.problem:
                    raise record.problem
                prompt = _prompt_of(record.fields)
                ids = encode(prompt)
                if len(ids) > most_tokens:
                    raise MalformedRecord(f"over {most_tokens} tokens", f"{len(ids)}")
            except MalformedRecord as error:
                left_out[error.reason].append(f"{where} ({error.detail})" if error.detail else where)
                continue
            prompts.append(Prompt(ids, prompt, record.fields, where))
            found.update(orjson.dumps([ids, record.fields], option=orjson.OPT_SORT_KEYS, default=str))
    for reason, places in left_out.items():
        logger.warning("%d records left out: %s: %s", len(places), reason, ", ".join(places[:3]))
    if not prompts:
        raise DataError(
            "holds no prompt",
            where=path,
            fix='One a line is expected: {"prompt": "2+3=", "answer": "5"}, or messages for the text.',
        )
    return prompts, found.hexdigest()


def _prompt_of(fields: Mapping[str, Any]) -> Any:
    prompt = fields.get("prompt", fields.get("messages"))
    if prompt is None:
        raise MalformedRecord("no prompt", f"has {', '.join(map(repr, fields)) or 'nothing'}")
    if not isinstance(prompt, str | list):
        raise MalformedRecord("prompt is neither text nor messages", type(prompt).__name__)
    return prompt


def prompt_data(stage: "Grpo") -> Callable[[TrainConfig], RunData]:
    """Returns a function that reads the prompts of ``data.path``, with the tokenizer of the model."""

    def open_data(config: TrainConfig) -> RunData:
        assert config.start.path is not None, "a fine-tuning begins with a model"
        model = open_start(config.start.path)
        path = config.data.paths[0]
        prompts, fingerprint = read_prompts(
            path,
            prompt_encoder(model.tokenizer, model.companions, model.bos_ids, stage.prompts),
            most_tokens=config.data.sequence_length - stage.max_new_tokens,
        )
        split = PromptSplit(
            prompts,
            group_size=stage.group_size,
            batch_size=config.global_batch_size,
            updates=stage.updates,
            seed=config.seed,
            name=str(path),
        )
        facts = [split.describe()]
        return RunData(train=split, tokenizer=model.tokenizer, fingerprint=fingerprint, facts=facts)

    return open_data


def prompt_encoder(
    tokenizer: Tokenizer, companions: Companions, bos_ids: Sequence[int], form: PromptForm
) -> Callable[[str | list[Any]], list[int]]:
    """Returns what turns prompts into ids as the model saw texts in its training.

    It raises ``MalformedRecord`` where that cannot be.

    Raises:
        ConfigError: The model has no chat template, and ``form`` asks for one.
    """
    from groundup.inference.chat_template import TemplateRefusal, read_chat_template

    template = read_chat_template(companions, tokenizer.special_tokens)
    if template is None and form == "chat":
        raise ConfigError(
            "the model has no chat template",
            where="stage.prompts=chat",
            fix="Tune it on conversations first (stage.kind=sft), or set stage.prompts=text.",
        )

    def encode(prompt: str | list[Any]) -> list[int]:
        if isinstance(prompt, str) and (form == "text" or template is None):
            return [*bos_ids, *tokenizer.encode(prompt)] or [tokenizer.end_of_document_id]
        if template is None:
            raise MalformedRecord("messages, and the model has no chat template")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if not messages or not all(isinstance(one, dict) and one.keys() >= _FIELDS for one in messages):
            raise MalformedRecord("messages without role and content")
        if messages[-1]["role"] == "assistant":
            raise MalformedRecord("the last message is the assistant's")
        try:
            parts = template.render(messages)
        except TemplateRefusal as error:
            raise MalformedRecord("refused by the chat template", error.what) from None
        ids = ([part] if isinstance(part, int) else tokenizer.encode(part) for part in parts)
        return list(itertools.chain.from_iterable(ids))

    return encode
