"""Conversations as batches in which only the assistant's turns are learned.

Shapes: B samples, T tokens.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from groundup.finetune.tokenized_chats import ChatSource
from groundup.tokens.sampling.collate import read_predictions
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.train.data_loader import Batch, from_predictions
from groundup.train.loss import IGNORE
from groundup.train.run_data import SampleSplit


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatSplit(SampleSplit):
    """Conversations in samples, of which only the assistant's turns are learned; see ``Split``."""

    source: ChatSource
    documents: tuple[int, int]

    def read(self, first_sample: int, count: int, *, ordered: bool = False) -> Batch:
        """See ``Split.read``."""
        predictions = read_predictions(
            self.samples,
            first_sample,
            count,
            vocab_size=self.vocab_size,
            ordered=ordered,
            mask_documents=True,
        )
        batch = from_predictions(predictions)
        learned = self.learned(first_sample, count, ordered=ordered)
        targets_BT = batch.targets_BT.masked_fill(torch.from_numpy(~learned[:, 1:]), IGNORE)
        return dataclasses.replace(batch, targets_BT=targets_BT)

    def learned(self, first_sample: int, count: int, *, ordered: bool) -> npt.NDArray[np.bool_]:
        """Returns of each token of some samples whether it is learned, [B, T + 1]."""
        learned = np.zeros((count, self.samples.sequence_length + 1), dtype=np.bool_)
        for row in range(count):
            at = 0
            for span in self.samples.spans(first_sample + row, ordered=ordered):
                size = span.end - span.begin
                learned[row, at : at + size] = self.source.learned[span.begin : span.end]
                at += size
        return learned

    def origins(self, index: int) -> list[dict[str, Any]]:
        """See ``Split.origins``."""
        found = []
        for span in self.samples.spans(index):
            document = int(self.source.documents_at(span.begin))
            file, line = self.source.place(document)
            length = span.end - span.begin
            found.append(
                {"document": document, "begin": 0, "end": length, "length": length}
                | {"source": file, "line": line, "url": ""}
            )
        return found

    def examples(self, count: int, tokenizer: Tokenizer) -> list[str]:
        """Returns the texts of the first conversations, with what is learned in double brackets."""
        texts = []
        for document in range(self.documents[0], min(self.documents[0] + count, self.documents[1])):
            begin, end = self.source.token_begin(document), self.source.token_begin(document + 1)
            ids, learned = self.source.tokens[begin:end], self.source.learned[begin:end]
            cuts = [0, *(np.flatnonzero(np.diff(learned)) + 1).tolist(), len(ids)]
            file, line = self.source.place(document)
            pieces = ((ids[a:b].tolist(), bool(learned[a])) for a, b in itertools.pairwise(cuts))
            text = "".join(_shown(tokenizer, ids, is_learned) for ids, is_learned in pieces)
            texts.append(f"an example, of which [[ ]] is learned ({file}:{line}):\n{text}")
        return texts


def _shown(tokenizer: Tokenizer, ids: Sequence[int], is_learned: bool) -> str:
    text = tokenizer.decode(ids)
    return f"[[{text}]]" if is_learned else text
