"""Pairs as tokens and as batches: each row has whole pairs, and every answer is a document of its own.

A pair is kept as its prompt with the chosen answer, and again with the rejected one; the answers are learned.

Shapes: B rows, T tokens of a row: twice the sequence length, so that two answers of any length fit.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from groundup.core.manifest import fingerprint
from groundup.corpus.sources import find_source_files
from groundup.finetune.chat_split import ChatSplit
from groundup.finetune.chats import ChatRecord, NoConversation
from groundup.finetune.pair_loss import REFERENCE
from groundup.finetune.pairs import PairFields, Turn, pair_of
from groundup.tokens.sampling.collate import predictions
from groundup.tokens.sampling.dataset import PADDING
from groundup.tokens.sampling.excerpt import Excerpt
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.train.data_loader import Batch, from_predictions
from groundup.train.loss import IGNORE

if TYPE_CHECKING:
    from groundup.inference.chat_template import ChatTemplate


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairFormat:
    """How pairs become tokens; see ``RecordFormat``.

    Attributes:
        tokenizer: Of the model.
        template: Of the model; None for texts as they are, ended by the end of a document.
        template_source: Its text.
        bos_ids: Begin a prompt without a template.
        fields: Names of fields in a record.
        max_tokens: Of a prompt with one answer.
    """

    noun: ClassVar[str] = "pairs"
    tokenizer: Tokenizer
    template: "ChatTemplate | None"
    template_source: str
    bos_ids: Sequence[int]
    fields: PairFields
    max_tokens: int

    def fingerprint(self, paths: Sequence[Path]) -> str:
        """Hashes what decides the tokens of files."""
        files = [[file.name, file.size_bytes, file.mtime_ns] for file in find_source_files(paths)]
        settings = [self.noun, dataclasses.asdict(self.fields), self.max_tokens, list(self.bos_ids)]
        return fingerprint([self.tokenizer.fingerprint, self.template_source, settings, files])

    def encode(self, record: ChatRecord) -> tuple[list[int], list[bool]]:
        """Returns the ids of a record's pair, and of each whether it is of an answer.

        Raises:
            NoConversation: It holds no pair.
        """
        if record.problem:
            raise record.problem
        pair = pair_of(record.fields, self.fields)
        ids: list[int] = []
        learned: list[bool] = []
        for answer in (pair.chosen, pair.rejected):
            prompt_ids, answer_ids = self._sequence(pair.prompt, answer)
            length = len(prompt_ids) + len(answer_ids)
            if length > self.max_tokens:
                raise NoConversation("too long", f"{length:,} tokens; at most {self.max_tokens:,} fit")
            ids += [*prompt_ids, *answer_ids]
            learned += [*(False for _ in prompt_ids), *(True for _ in answer_ids)]
        return ids, learned

    def _sequence(self, prompt: list[Turn], answer: Turn) -> tuple[list[int], list[int]]:
        """Returns the ids before an answer, at least one, and those of the answer."""
        if self.template is None:
            if [turn["role"] for turn in prompt] != ["user"]:
                raise NoConversation("a conversation", "the model has no chat template: set stage.template")
            before = [*self.bos_ids, *self.tokenizer.encode(prompt[0]["content"])]
            return before, [*self.tokenizer.encode(answer["content"]), self.tokenizer.end_of_document_id]
        from groundup.inference.chat_template import TemplateRefusal

        try:
            parts = self.template.answers([*prompt, answer], last=True)
        except TemplateRefusal as error:
            raise NoConversation("refused by the template", str(error)) from None
        encoded: dict[bool, list[int]] = {False: [], True: []}
        for part, is_learned in parts:
            if encoded[True] and not is_learned:
                break  # what the template writes behind the answer
            encoded[is_learned] += [part] if isinstance(part, int) else self.tokenizer.encode(part)
        return encoded[False], encoded[True]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairSplit(ChatSplit):
    """Packed pairs; see ``Split``.

    Attributes:
        reference: float32 [pairs, 2], log-probabilities of the answers by the reference model, chosen first.
    """

    reference: npt.NDArray[np.float32] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Makes room for the reference."""
        first, last = self.documents
        object.__setattr__(self, "reference", np.zeros((last - first, 2), dtype=np.float32))

    @property
    def fingerprint(self) -> str:
        """Hash of the tokens and of how they are packed."""
        return fingerprint([self.source.fingerprint, self.documents, self.samples.sequence_length])

    def excerpt(self, first_sample: int, count: int) -> Self:
        """See ``Split.excerpt``."""
        part = dataclasses.replace(self, samples=Excerpt(self.samples, first_sample, count))
        part.reference[:] = self.reference
        return part

    def pairs_of(self, sample: int, *, ordered: bool = True) -> list[int]:
        """Returns the numbers of the pairs in a sample."""
        spans = self.samples.spans(sample, ordered=ordered)
        return [int(self.source.documents_at(span.begin)) - self.documents[0] for span in spans]

    def read(self, first_sample: int, count: int, *, ordered: bool = False) -> Batch:
        """See ``Split.read``."""
        windows = self.samples.batch(first_sample, count, ordered=ordered)
        learned = self.learned(first_sample, count, ordered=ordered)
        starts = self.samples.document_starts(first_sample, count, ordered=ordered)
        starts[:, 1:] |= learned[:, :-1] & ~learned[:, 1:]  # the prompt of the rejected answer
        batch = from_predictions(predictions(windows, starts))
        assert batch.documents_BT is not None and batch.positions_BT is not None, "they were asked for"
        is_padding_BT = torch.from_numpy(windows[:, :-1] == PADDING)
        reference = np.zeros(batch.tokens_BT.shape, dtype=np.float32)
        for row in range(count):
            numbers = self.pairs_of(first_sample + row, ordered=ordered)
            begins = np.flatnonzero(starts[row])[: 2 * len(numbers)]
            reference[row, begins] = self.reference[numbers].ravel()
        return dataclasses.replace(
            batch,
            targets_BT=batch.targets_BT.masked_fill(torch.from_numpy(~learned[:, 1:]), IGNORE),
            documents_BT=batch.documents_BT - 1,
            # A row is longer than the model's context, which the padding at its end must not exceed.
            positions_BT=batch.positions_BT.masked_fill(is_padding_BT, 0),
            extra={REFERENCE: torch.from_numpy(reference)},
        )
