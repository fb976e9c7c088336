"""Pairs of answers as samples: each row has whole pairs, packed, every answer a document of its own.

Shapes: B rows, T tokens of a row: twice the sequence length, so that two answers of any length fit.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from groundup.finetune.pair_loss import REFERENCE
from groundup.tokens.sampling.packing import Packing, pack
from groundup.tokens.sampling.shuffle import samples_at
from groundup.train.data_loader import Batch
from groundup.train.loss import IGNORE

Ids = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TokenPair:
    """The ids of a pair.

    Attributes:
        prompt: Before both answers; at least one.
        chosen: The better answer.
        rejected: The other one.
        where: ``file:line``.
    """

    prompt: Ids
    chosen: Ids
    rejected: Ids
    where: str

    @property
    def lengths(self) -> tuple[int, int]:
        """Inputs of the model that each answer takes with its prompt: all tokens but the last."""
        prompt = len(self.prompt) - 1
        return prompt + len(self.chosen), prompt + len(self.rejected)


class PairSplit:
    """Packed pairs; see ``Split`` of ``groundup.train.run_data``.

    Args:
        pairs: None with an answer of more than ``sequence_length`` inputs, its prompt included.
        sequence_length: T / 2.
        seed: Of the order.
        name: For messages.

    Attributes:
        reference: float32 [pairs, 2], log-probabilities of the answers by the reference model, chosen first.
    """

    def __init__(self, pairs: Sequence[TokenPair], *, sequence_length: int, seed: int, name: str) -> None:
        self.pairs = pairs
        self.sequence_length = sequence_length
        self.row_length = 2 * sequence_length
        self.seed = seed
        self.name = name
        self.reference = np.zeros((len(pairs), 2), dtype=np.float32)
        lengths = np.array([sum(pair.lengths) for pair in pairs])
        self.packing: Packing = pack(lengths, self.row_length - 1)
        self.num_samples = self.packing.num_samples
        self.num_tokens = int(lengths.sum())

    @property
    def fingerprint(self) -> str:
        """Hash of all ids and of how they are packed."""
        found = hashlib.sha256(f"pairs 1: {self.sequence_length} {len(self.pairs)}".encode())
        for pair in self.pairs:
            for ids in (pair.prompt, pair.chosen, pair.rejected):
                found.update(len(ids).to_bytes(4, "little") + ids.astype("<i4").tobytes())
        return found.hexdigest()

    def describe(self) -> str:
        """Returns how many pairs there are, and how they lie in rows, in a line."""
        places = self.num_samples * self.row_length
        return (
            f"{self.name}: {len(self.pairs):,} pairs in {self.num_samples:,} rows of {self.row_length:,}"
            f" tokens ({self.num_tokens / places:.0%} full)"
        )

    def pairs_of(self, sample: int) -> list[int]:
        """Returns the numbers of the pairs of a sample, by its number in file order."""
        begin, end = self.packing.sample_begins[sample : sample + 2]
        found: list[int] = self.packing.documents[begin:end].tolist()
        return found

    def read(self, first_sample: int, count: int, *, ordered: bool = False) -> Batch:
        """See ``Split.read``."""
        return self.rows(self._samples(first_sample, count, ordered))

    def rows(self, samples: Sequence[int]) -> Batch:
        """Makes a batch of samples by their numbers in file order."""
        shape = (len(samples), self.row_length)
        tokens_BT, targets_BT = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORE, dtype=np.int64)
        positions_BT, documents_BT = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int32)
        reference_BT = np.zeros(shape, dtype=np.float32)
        for row, sample in enumerate(samples):
            at = sequence = 0
            for number in self.pairs_of(sample):
                pair = self.pairs[number]
                for answer, value in zip((pair.chosen, pair.rejected), self.reference[number], strict=True):
                    ids = np.concatenate((pair.prompt, answer))
                    end = at + len(ids) - 1
                    tokens_BT[row, at:end] = ids[:-1]
                    targets_BT[row, at + len(pair.prompt) - 1 : end] = answer
                    positions_BT[row, at:end] = np.arange(end - at)
                    documents_BT[row, at:end] = sequence
                    reference_BT[row, at] = value
                    at, sequence = end, sequence + 1
            positions_BT[row, at:] = np.arange(self.row_length - at) % self.sequence_length
            documents_BT[row, at:] = sequence  # padding, which no other attends to
        return Batch(
            tokens_BT=torch.from_numpy(tokens_BT),
            targets_BT=torch.from_numpy(targets_BT),
            positions_BT=torch.from_numpy(positions_BT),
            documents_BT=torch.from_numpy(documents_BT),
            extra={REFERENCE: torch.from_numpy(reference_BT)},
        )

    def excerpt(self, first_sample: int, count: int) -> "PairSplit":
        """See ``Split.excerpt``."""
        numbers = [
            number for one in self._samples(first_sample, count, False) for number in self.pairs_of(one)
        ]
        pairs = [self.pairs[number] for number in numbers]
        part = PairSplit(pairs, sequence_length=self.sequence_length, seed=self.seed, name=self.name)
        part.reference[:] = self.reference[numbers]
        return part

    def origins(self, index: int) -> list[dict[str, Any]]:
        """See ``Split.origins``."""
        (sample,) = self._samples(index, 1, False)
        return [{"pair": number, "where": self.pairs[number].where} for number in self.pairs_of(sample)]

    def _samples(self, first_sample: int, count: int, ordered: bool) -> list[int]:
        if ordered:
            return [index % self.num_samples for index in range(first_sample, first_sample + count)]
        found: list[int] = samples_at(first_sample, count, size=self.num_samples, seed=self.seed).tolist()
        return found
