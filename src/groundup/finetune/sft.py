"""Supervised fine-tuning: what an assistant says in conversations is learned, given what was said before."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from groundup.checkpoint.lazy import LazyModel
from groundup.core.config import config
from groundup.core.config_class import NotNegative, PositiveFloat
from groundup.core.errors import ConfigError, DataError
from groundup.core.log import logger, quiet
from groundup.core.manifest import fingerprint
from groundup.finetune.chat_split import ChatSplit
from groundup.finetune.chats import RecordFields
from groundup.finetune.templates import with_template
from groundup.finetune.tokenized_chats import ChatFormat, ChatSource, open_chats
from groundup.tokens.sampling.packing import PackedDataset
from groundup.tokens.sampling.split_documents import SPLITS, split_ranges
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.train.init_weights import open_start
from groundup.train.learning import Learning
from groundup.train.run_data import RunData
from groundup.train.setup import Run

if TYPE_CHECKING:
    from groundup.finetune.config import FinetuneConfig

BY_EPOCHS = 10**9
"""Stands for the number of steps until the conversations are counted."""

_LONGEST = 2048
_KEPT = "conversations"


@config
class Sft:
    """Supervised fine-tuning on conversations.

    Attributes:
        template: "own" for the model's chat template; plain, chatml or llama3, whose special tokens are added
            where the model has none of them; or a file in Jinja's language. "" takes the model's own, and
            plain where it has none.
        fields: Names of fields in a record, where its form is not recognised.
        answers: Which of the assistant's turns are learned: all, or the last of each conversation.
        epochs: Passes over the conversations, where num_steps is not given.
        examples: Conversations that are shown before the first step, what is learned of them in brackets.
    """

    kind: Literal["sft"] = "sft"
    template: str = ""
    fields: RecordFields = RecordFields()
    answers: Literal["all", "last"] = "all"
    epochs: PositiveFloat = 3.0
    examples: NotNegative = 3

    @staticmethod
    def defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
        """Returns settings of the run that this stage has another default for."""
        model, data = tree.get("model") or {}, tree.get("data") or {}
        longest = model.get("max_sequence_length")
        name = Path(str(data.get("path", "chats"))).name.partition(".")[0]
        return {
            "run_dir": f"runs/{name}-sft",
            "num_steps": BY_EPOCHS,
            "data": {
                "packing": "best_fit",
                "mask_documents": True,
                "split": "95,5,0",
                "sequence_length": min(longest, _LONGEST) if isinstance(longest, int) else _LONGEST,
            },
            "optimizer": {"kind": "adamw", "lr": 2e-5},
            "warmup": {"kind": "fraction", "fraction": 0.03},
            "validation": {"interval": 50, "num_batches": 0},
        }

    def completed(self, run: "FinetuneConfig") -> "FinetuneConfig":
        """Returns the config with what model and data decide: the vocabulary, and the number of steps."""
        self._require(run)
        with quiet():
            stored = self._start(run)
        model = dataclasses.replace(run.model, vocab_size=stored.config.vocab_size)
        run = dataclasses.replace(run, model=model)
        if run.num_steps == BY_EPOCHS:
            samples = self._open(run, stored).train.num_samples
            steps = math.ceil(self.epochs * samples / run.global_batch_size)
            run = dataclasses.replace(run, num_steps=max(1, steps))
        return run

    def learning(self, run: "FinetuneConfig") -> Learning:
        """Returns what the training loop is given."""
        self._require(run)
        return Learning(
            open_data=lambda _: self._opened(run),
            change_start=lambda stored: with_template(stored, self.template),
            begin=self._show,
            encode_prompt=encode_question,
        )

    def _require(self, run: "FinetuneConfig") -> None:
        data = run.data
        problem = fix = ""
        if run.start.path is None:
            problem, fix = "there is no model to begin with", "Name it: groundup finetune MODEL ..."
        elif run.start.state:
            problem, fix = "start.state goes on with another run", "Leave it out: the weights begin this one."
        elif data.packing != "best_fit" or not data.mask_documents:
            problem, fix = (
                "conversations are packed whole and kept apart",
                "Leave out both settings.",
            )
        elif data.order != "seeded":
            problem, fix = f"the order of conversations is not {data.order}", "Leave out data.order."
        elif any(one.weight != "proportional" for one in data.sources.values()):
            problem, fix = "files of conversations have no weights", "Leave them out, or name a file twice."
        if problem:
            raise ConfigError(problem, where="stage.kind=sft", fix=fix)

    def _start(self, run: "FinetuneConfig") -> LazyModel:
        assert run.start.path is not None, "it was checked"
        tokenizer = load_tokenizer(run.data.tokenizer) if run.data.tokenizer else None
        return with_template(open_start(run.start.path, tokenizer), self.template)

    def _opened(self, run: "FinetuneConfig") -> RunData:
        with quiet():  # what is said of the model is said where the run begins with it
            stored = self._start(run)
        return self._open(run, stored)

    def _open(self, run: "FinetuneConfig", stored: LazyModel) -> RunData:
        """Opens the conversations of a run.

        Raises:
            DataError: They cannot be read, or none is left for training.
        """
        from groundup.inference.chat_template import read_chat_template

        tokenizer = stored.tokenizer
        template = read_chat_template(stored.companions, tokenizer.special_tokens)
        assert template is not None, "the model was given one"
        how = ChatFormat(
            tokenizer=tokenizer,
            template=template,
            template_source=stored.companions.chat_template or "",
            fields=self.fields,
            last_answer_only=self.answers == "last",
            max_tokens=run.data.sequence_length + 1,
        )
        data, folder = run.data, run.run_dir / _KEPT
        source = open_chats([one.path for one in data.training.values()], how, folder)
        shares = data.split.replace("/", ",").split(",")
        for number, own in ((1, data.validation), (2, data.test)):
            if own and len(shares) > number:
                shares[number] = "0"
        ranges = split_ranges(",".join(shares), source.num_documents)
        splits = {name: _split(source, ranges[name], name, run) for name in SPLITS}
        for name, own in (("validation", data.validation), ("test", data.test)):
            if own:
                held_out = open_chats([one.path for one in own.values()], how, folder)
                splits[name] = _split(held_out, (0, held_out.num_documents), name, run)
        train = splits["train"]
        if train is None:
            raise DataError(
                f"data.split={data.split} leaves none of {source.num_documents} conversations for training",
                where=source.name,
                fix="Set data.split=1,0,0 and validation.interval=0.",
            )
        assert isinstance(train.samples, PackedDataset), "conversations are packed"
        return RunData(
            train=train,
            validation=splits["validation"],
            test=splits["test"],
            tokenizer=tokenizer,
            fingerprint=fingerprint([source.fingerprint, ranges["train"], how.max_tokens]),
            facts=[source.describe(), train.samples.describe()],
        )

    def _show(self, run: Run) -> None:
        """Logs the first conversations of the training, before its first step."""
        if run.state.step or not run.mesh.is_first:
            return
        split = run.data.train
        assert isinstance(split, ChatSplit), "this stage opened it"
        for text in split.examples(self.examples, run.tokenizer):
            logger.info("%s", text)


def encode_question(run: Run, text: str) -> list[int]:
    """Returns a user's question as ids, up to where the answer begins."""
    from groundup.inference.chat_template import read_chat_template

    template = read_chat_template(run.state.companions, run.tokenizer.special_tokens)
    assert template is not None, "the run began with one"
    ids: list[int] = []
    for part in template.render([{"role": "user", "content": text}]):
        ids += [part] if isinstance(part, int) else run.tokenizer.encode(part)
    return ids


def _split(
    source: ChatSource, documents: tuple[int, int], name: str, run: "FinetuneConfig"
) -> ChatSplit | None:
    """The samples of some conversations; None where there are none."""
    if documents[0] == documents[1]:
        return None
    samples = PackedDataset(
        source,
        documents,
        sequence_length=run.data.sequence_length,
        seed=run.seed,
        name=f"{source.name} ({name})",
    )
    return ChatSplit(samples=samples, vocab_size=run.model.vocab_size, source=source, documents=documents)
