"""Megatron-LM's order of samples, for people who continue a run that it began.

``GPTDataset`` of Megatron-LM (2023, commit 992da75; the same today) lays the documents of all epochs
behind each other, shuffled, cuts the stream into samples, and shuffles these, with one numpy generator
and in a fixed order of calls. Nothing here is written to disk: the document order and the sample
shuffle are made in memory, and where a sample begins is found by bisection.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

_SEPARATE_BELOW = 0.80  # of an epoch's samples: then the last epoch is shuffled apart


@dataclasses.dataclass(frozen=True)
class MegatronOrder:
    """Which tokens come as sample ``i``.

    Attributes:
        documents: Document of each place in the stream, all epochs behind each other: int32 [E D].
        begins: Tokens of the split before each document, in file order: int64 [D].
        ends: Tokens up to the end of each place: int64 [E D].
        shuffle: Place in the stream of each sample, in samples: uint32 or int64 [num_samples].
        sequence_length: L; a sample has L + 1 tokens and shares its last one with the next.
    """

    documents: npt.NDArray[np.int32]
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    shuffle: npt.NDArray[Any]
    sequence_length: int

    @property
    def num_samples(self) -> int:
        """Samples of all epochs together."""
        return len(self.shuffle)

    def ranges(self, sample: int) -> list[tuple[int, int]]:
        """Where a sample's L + 1 tokens are: ranges [begin, end) of the split's tokens, in file order.

        Args:
            sample: 0 <= sample < num_samples.
        """
        begin = int(self.shuffle[sample]) * self.sequence_length
        end = begin + self.sequence_length + 1
        place = int(np.searchsorted(self.ends, begin, side="right"))
        found = []
        while begin < end:
            document_begin = int(self.ends[place - 1]) if place else 0
            document_end = min(int(self.ends[place]), end)
            if document_end > begin:
                moved = int(self.begins[self.documents[place]]) - document_begin
                found.append((begin + moved, document_end + moved))
                begin = document_end
            place += 1
        return found

    def starts(self) -> npt.NDArray[np.int64]:
        """Megatron-LM's ``sample_idx``: (place, offset) of the first token of each sample, [n + 1, 2]."""
        begins = np.arange(self.num_samples + 1, dtype=np.int64) * self.sequence_length
        places = np.searchsorted(self.ends, begins, side="right")
        before = np.where(places > 0, self.ends[places - 1], 0)
        return np.stack((places, begins - before), axis=1)


def megatron_order(
    lengths: npt.NDArray[np.int32],
    *,
    sequence_length: int,
    num_samples: int,
    seed: int,
) -> MegatronOrder:
    """The order that Megatron-LM would train in.

    Args:
        lengths: Tokens of each document of the split.
        sequence_length: L.
        num_samples: Samples the run will take, steps times global batch: decides the number of epochs.
        seed: Megatron-LM's ``--seed``, 1234 by default there.

    Raises:
        ValueError: The split has fewer than L + 1 tokens.
    """
    tokens_per_epoch = int(lengths.sum(dtype=np.int64))
    if tokens_per_epoch <= sequence_length:
        raise ValueError(f"{tokens_per_epoch} tokens are less than one sample of {sequence_length + 1}")
    epochs = max(1, -(-(num_samples * sequence_length + 1) // tokens_per_epoch))
    total = (epochs * tokens_per_epoch - 1) // sequence_length
    first = total
    if epochs > 1:
        first_samples = ((epochs - 1) * tokens_per_epoch - 1) // sequence_length
        per_epoch = (tokens_per_epoch - 1) // sequence_length
        if num_samples - first_samples < int(_SEPARATE_BELOW * per_epoch):
            first = first_samples
    rng = np.random.RandomState(seed)  # one generator, in Megatron-LM's order of calls
    documents = _shuffled_documents(rng, len(lengths), epochs, separate=first != total)
    return MegatronOrder(
        documents=documents,
        begins=np.cumsum(lengths, dtype=np.int64) - lengths,
        ends=np.cumsum(lengths[documents], dtype=np.int64),
        shuffle=_shuffled_samples(rng, first, total),
        sequence_length=sequence_length,
    )


def _shuffled_documents(
    rng: np.random.RandomState, num_documents: int, epochs: int, *, separate: bool
) -> npt.NDArray[np.int32]:
    """Documents of all epochs; the last epoch apart when its samples are."""
    one = np.arange(num_documents, dtype=np.int32)
    if not separate:
        documents = np.tile(one, epochs)
        rng.shuffle(documents)
        return documents
    documents = np.tile(one, epochs - 1)
    rng.shuffle(documents)
    rng.shuffle(one)
    return np.concatenate((documents, one))


def _shuffled_samples(rng: np.random.RandomState, first: int, total: int) -> npt.NDArray[Any]:
    dtype = np.uint32 if total < np.iinfo(np.uint32).max - 1 else np.int64
    samples = np.arange(first, dtype=dtype)
    rng.shuffle(samples)
    if first == total:
        return samples
    last = np.arange(first, total, dtype=dtype)
    rng.shuffle(last)
    return np.concatenate((samples, last))
