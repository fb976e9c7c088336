"""Best-fit packing: samples of whole documents, so that few are cut (Ding et al. 2024, arXiv:2404.10830).

A document of more than L + 1 tokens is cut into ranges of that many, of which each begins with the last
token of the one before: no prediction is lost. The ranges, the longest first, each go to the sample with
the least room that still holds them; what is left of a sample is padding. The result depends on the
lengths of the documents alone, and is the same in every epoch; only the order of samples changes.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.tokens.dataset.token_source import TokenSource
from groundup.tokens.sampling.dataset import PADDING, Span, copy_ranges
from groundup.tokens.sampling.shuffle import samples_at


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Packing:
    """Which ranges of documents lie in which sample, sample by sample, in file order within each.

    A sample comes where the first document in it does.

    Attributes:
        sequence_length: L; a sample has room for L + 1 tokens.
        num_documents: Packed or not.
        num_left_out: Documents of fewer than two tokens: they predict nothing.
        num_cut: Documents in more than one range.
        num_padded: Places in the samples that hold no token.
        documents: [num_ranges], the document of each range.
        numbers: [num_ranges], which range of its document it is; it begins at token L * number.
        sample_begins: [num_samples + 1], the first range of each sample.
    """

    sequence_length: int
    num_documents: int
    num_left_out: int
    num_cut: int
    num_padded: int
    documents: npt.NDArray[Any]
    numbers: npt.NDArray[Any]
    sample_begins: npt.NDArray[Any]

    @property
    def num_samples(self) -> int:
        """Samples."""
        return len(self.sample_begins) - 1

    @property
    def num_targets(self) -> int:
        """Tokens that are predicted from their own document: all but the first of each range."""
        return self.num_samples * (self.sequence_length + 1) - self.num_padded - len(self.documents)

    @property
    def state_bytes(self) -> int:
        """Memory that it takes."""
        return self.documents.nbytes + self.numbers.nbytes + self.sample_begins.nbytes

    def describe(self) -> str:
        """What packing did, in a line."""
        places = max(1, self.num_samples * (self.sequence_length + 1))
        share_cut = self.num_cut / max(1, self.num_documents)
        said = (
            f"best-fit packing: {self.num_samples:,} samples, {self.num_padded:,} tokens of padding"
            f" ({self.num_padded / places:.2%}), none cropped; {self.num_cut:,} of {self.num_documents:,}"
            f" documents ({share_cut:.2%}) longer than a sample and cut"
        )
        if self.num_left_out:
            said += f"; {self.num_left_out:,} of less than two tokens left out"
        return said


def pack(lengths: npt.NDArray[np.integer[Any]], sequence_length: int) -> Packing:
    """Packs documents of these lengths into samples of ``sequence_length`` + 1 tokens."""
    room = sequence_length + 1
    num_ranges = -(-np.maximum(lengths - 1, 0) // sequence_length)
    used = np.flatnonzero(num_ranges).astype(np.uint32)
    num_ranges = num_ranges[used]
    documents = np.repeat(used, num_ranges)
    last = np.cumsum(num_ranges, dtype=np.int64) - 1  # range of each document
    numbers = _count_up(last, len(documents)).astype(np.min_scalar_type(int(num_ranges.max(initial=1))))
    sizes = np.full(len(documents), room, dtype=np.min_scalar_type(room))
    sizes[last] = lengths[used] - (num_ranges - 1) * sequence_length
    num_cut = int((num_ranges > 1).sum())
    del num_ranges, last

    bins, num_samples = _best_fit_decreasing(sizes, room)
    sample_of_range = _number_by_first(bins, num_samples)
    del bins
    num_padded = num_samples * room - int(sizes.sum(dtype=np.int64))
    del sizes
    by_sample = np.argsort(sample_of_range, kind="stable")
    begins = np.zeros(num_samples + 1, dtype=np.min_scalar_type(len(documents)))
    np.cumsum(np.bincount(sample_of_range, minlength=num_samples), out=begins[1:])
    return Packing(
        sequence_length=sequence_length,
        num_documents=len(lengths),
        num_left_out=len(lengths) - len(used),
        num_cut=num_cut,
        num_padded=num_padded,
        documents=documents[by_sample],
        numbers=numbers[by_sample],
        sample_begins=begins,
    )


def _count_up(last: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.int64]:
    """0, 1, ... within each document, whose last ranges these are."""
    first = np.zeros(total, dtype=np.int64)
    first[last[:-1] + 1] = last[:-1] + 1
    np.maximum.accumulate(first, out=first)
    return np.arange(total) - first


def _best_fit_decreasing(sizes: npt.NDArray[Any], room: int) -> tuple[npt.NDArray[np.uint32], int]:
    """The bin of each range, and the number of bins.

    Bins with the same room left are one group: ranges of one size fill a whole group at a time, each bin
    with as many as go in, which is what placing them one by one does (the fullest bin that takes a range
    takes the next one too, until it no longer does). Each visit at least halves a group's room, so that
    the number of visits grows with ``room`` log ``room``, not with the number of ranges.
    """
    bins = np.empty(len(sizes), dtype=np.uint32)
    decreasing = np.argsort(room - sizes, kind="stable")
    counts = np.bincount(sizes, minlength=room + 1)
    groups: list[list[npt.NDArray[np.uint32]]] = [[] for _ in range(room + 1)]
    is_open = np.zeros(room + 1, dtype=np.bool_)
    num_bins, done = 0, 0

    def leave(left: int, filled: npt.NDArray[np.uint32]) -> None:
        if left > 1 and len(filled):  # no range is smaller than two tokens
            groups[left].append(filled)
            is_open[left] = True

    for size in np.flatnonzero(counts)[::-1].tolist():
        waiting = int(counts[size])
        while waiting:
            tightest = int(is_open[size:].argmax()) + size
            if is_open[tightest]:
                group = np.concatenate(groups[tightest])
                groups[tightest].clear()
                is_open[tightest] = False
            else:
                tightest = room
                new = -(-waiting // (room // size))
                group = np.arange(num_bins, num_bins + new, dtype=np.uint32)
                num_bins += new
            each = tightest // size
            num_used = min(len(group), -(-waiting // each))
            placed = min(waiting, num_used * each)
            in_last = placed - (num_used - 1) * each
            bins[decreasing[done : done + placed]] = np.repeat(group[:num_used], each)[:placed]
            leave(tightest - each * size, group[: num_used - 1])
            leave(tightest - in_last * size, group[num_used - 1 : num_used])
            leave(tightest, group[num_used:])
            waiting -= placed
            done += placed
    return bins, num_bins


def _number_by_first(bins: npt.NDArray[np.uint32], num_bins: int) -> npt.NDArray[np.uint32]:
    """The bin of each range, the bins numbered by the first range in each."""
    first = np.full(num_bins, len(bins), dtype=np.int64)
    np.minimum.at(first, bins, np.arange(len(bins)))
    numbers = np.empty(num_bins, dtype=np.uint32)
    numbers[np.argsort(first)] = np.arange(num_bins, dtype=np.uint32)
    return numbers[bins]


class PackedDataset:
    """Samples of whole documents, as far as they go; see ``Samples``.

    With documents masked, each is trained on as it would be alone, cut at L targets. Without the mask a
    document also sees, and its first token is predicted from, those before it in the sample, as in a
    stream, but these are of fitting length instead of neighbours in the file.

    Args:
        source: Where the tokens are.
        documents: [begin, end) of its documents, None for all.
        sequence_length: L; a sample has L + 1 tokens, ``PADDING`` at its end included.
        seed: Of the order.
        name: For messages.

    Raises:
        DataError: No document has two tokens.
    """

    def __init__(
        self,
        source: TokenSource,
        documents: tuple[int, int] | None = None,
        *,
        sequence_length: int,
        seed: int,
        name: str = "",
    ) -> None:
        first, last = documents or (0, source.num_documents)
        self.source = source
        self.sequence_length = sequence_length
        self.seed = seed
        self.name = name or source.name
        self.first_document = first
        self.num_documents = last - first
        self.num_tokens = source.token_begin(last) - source.token_begin(first)
        self.packing = pack(source.document_lengths(first, last), sequence_length)
        self.num_samples = self.packing.num_samples
        if self.num_samples == 0:
            raise DataError(
                f"none of its {self.num_documents:,} documents has two tokens",
                where=self.name,
                fix="Add text.",
            )

    def describe(self) -> str:
        """What packing did, in a line."""
        return self.packing.describe()

    def batch(self, first_index: int, count: int, *, ordered: bool = False) -> npt.NDArray[np.int64]:
        """See ``Samples.batch``; ordered, a sample comes where its first document does."""
        batch = np.full((count, self.sequence_length + 1), PADDING, dtype=np.int64)
        for row, ranges in zip(batch, self._ranges(first_index, count, ordered), strict=True):
            copy_ranges(self.source, ranges, row)
        return batch

    def document_starts(
        self, first_index: int, count: int, *, ordered: bool = False
    ) -> npt.NDArray[np.bool_]:
        """See ``Samples.document_starts``; a range of a cut document counts as one."""
        starts = np.zeros((count, self.sequence_length + 1), dtype=np.bool_)
        for row, ranges in enumerate(self._ranges(first_index, count, ordered)):
            at = 0
            for begin, end in ranges:
                starts[row, at] = True
                at += end - begin
        return starts

    def spans(self, index: int, *, ordered: bool = False) -> list[Span]:
        """See ``Samples.spans``."""
        (ranges,) = self._ranges(index, 1, ordered)
        return [Span(self.source, begin, end) for begin, end in ranges]

    def _ranges(self, first_index: int, count: int, ordered: bool) -> Iterator[list[tuple[int, int]]]:
        """For each sample, the ranges of the source's tokens that it is made of."""
        if ordered:
            samples = np.arange(first_index, first_index + count) % self.num_samples
        else:
            samples = samples_at(first_index, count, size=self.num_samples, seed=self.seed)
        packing, length, token_begin = self.packing, self.sequence_length, self.source.token_begin
        for sample in samples.tolist():
            here = slice(*packing.sample_begins[sample : sample + 2].tolist())
            ranges = []
            documents, numbers = packing.documents[here].tolist(), packing.numbers[here].tolist()
            for document, number in zip(documents, numbers, strict=True):
                document += self.first_document
                begin = token_begin(document) + number * length
                ranges.append((begin, min(begin + length + 1, token_begin(document + 1))))
            yield ranges
