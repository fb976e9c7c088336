"""Samples from tokens: windows over the documents of a split, in an order that is computed.

Sample ``i`` of a split is tokens [i * L, (i + 1) * L] of its documents, one behind the other: L + 1
tokens, the last of which is the next one's first, as in Megatron-LM. The documents of a split are
neighbours in the file, so a sample is one slice of the memory-mapped tokens.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.tokens.dataset.token_source import TokenSource, expect_random_reads
from groundup.tokens.sampling.megatron_order import MegatronOrder, megatron_order
from groundup.tokens.sampling.shuffle import samples_at

PADDING = -(1 << 62)
"""Stands in a sample where there is no token; no file can hold such an id."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Tokens [begin, end) of a source, within a sample."""

    source: TokenSource
    begin: int
    end: int


class Samples(Protocol):
    """What training and evaluation read: samples of L + 1 tokens by index.

    Which sample comes at an index is a pure function of (data, seed, index): no state, no index files,
    constant time. The index runs on through the epochs, each of which has its own order.
    """

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def sequence_length(self) -> int:
        """L: tokens predicted in one sample."""
        ...

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        ...

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        ...

    @property
    def num_samples(self) -> int:
        """Samples of one epoch; of a mixture, those that come before any source begins again."""
        ...

    def batch(self, first_index: int, count: int, *, ordered: bool = False) -> npt.NDArray[np.int64]:
        """The samples at the indices [first_index, first_index + count): int64 [count, L + 1].

        Args:
            first_index: 0 or more.
            count: Number of samples.
            ordered: In file order instead of the seeded one; past the end it begins again.
        """
        ...

    def document_starts(
        self, first_index: int, count: int, *, ordered: bool = False
    ) -> npt.NDArray[np.bool_]:
        """Whether a document begins at each token of ``batch``: bool [count, L + 1]."""
        ...

    def spans(self, index: int, *, ordered: bool = False) -> list[Span]:
        """Where the tokens of one sample lie."""
        ...


class TokenDataset:
    """The samples of some neighbouring documents of a source; see ``Samples``.

    Args:
        source: Where the tokens are.
        documents: [begin, end) of its documents, None for all.
        sequence_length: L; a sample has L + 1 tokens.
        seed: Of the order.
        name: For messages.
        megatron_samples: Take Megatron-LM's order, of a run of so many samples, instead of the seeded one.

    Raises:
        DataError: There is not one whole sample.
    """

    def __init__(
        self,
        source: TokenSource,
        documents: tuple[int, int] | None = None,
        *,
        sequence_length: int,
        seed: int,
        name: str = "",
        megatron_samples: int = 0,
    ) -> None:
        self.source = source
        self.documents = documents
        self.sequence_length = sequence_length
        self.seed = seed
        self.name = name or source.name
        self.begin, self.end = 0, len(source.tokens)
        if documents:
            self.begin, self.end = source.token_begin(documents[0]), source.token_begin(documents[1])
        self.num_tokens = self.end - self.begin
        self.num_samples = samples_in(self.num_tokens, sequence_length)
        if self.num_samples == 0:
            raise DataError(
                f"has {self.num_tokens:,} tokens, one sample needs {sequence_length + 1:,}",
                where=self.name,
                fix=f"Set sequence_length to {max(1, self.num_tokens - 1)} or less, or add text.",
            )
        expect_random_reads(source.tokens)
        self._megatron: MegatronOrder | None = None
        if megatron_samples:
            self._megatron = megatron_order(
                source.document_lengths(*(documents or (0, source.num_documents))),
                sequence_length=sequence_length,
                num_samples=megatron_samples,
                seed=seed,
            )

    @property
    def num_documents(self) -> int:
        """See ``Samples.num_documents``."""
        first, last = self.documents or (0, self.source.num_documents)
        return last - first

    @property
    def tokens(self) -> npt.NDArray[Any]:
        """[num_tokens], the documents one behind the other."""
        return self.source.tokens[self.begin : self.end]

    def samples(self, first_index: int, count: int) -> npt.NDArray[np.int64]:
        """Which windows come at the indices [first_index, first_index + count): int64 [count]."""
        return samples_at(first_index, count, size=self.num_samples, seed=self.seed)

    def batch(self, first_index: int, count: int, *, ordered: bool = False) -> npt.NDArray[np.int64]:
        """See ``Samples.batch``."""
        batch = np.empty((count, self.sequence_length + 1), dtype=np.int64)
        for row, ranges in zip(batch, self._ranges(first_index, count, ordered), strict=True):
            copy_ranges(self.source, ranges, row)
        return batch

    def document_starts(
        self, first_index: int, count: int, *, ordered: bool = False
    ) -> npt.NDArray[np.bool_]:
        """See ``Samples.document_starts``."""
        starts = np.zeros((count, self.sequence_length + 1), dtype=np.bool_)
        ranges = self._ranges(first_index, count, ordered)
        begins = iter(_document_begins(self.source, [bounds for row in ranges for bounds in row]))
        for row, bounds in enumerate(ranges):
            at = 0
            for begin, end in bounds:
                starts[row, at - begin + next(begins)] = True
                at += end - begin
        return starts

    def spans(self, index: int, *, ordered: bool = False) -> list[Span]:
        """See ``Samples.spans``."""
        return [Span(self.source, begin, end) for begin, end in self._ranges(index, 1, ordered)[0]]

    def _ranges(self, first_index: int, count: int, ordered: bool) -> list[list[tuple[int, int]]]:
        """For each sample, the ranges of the source's tokens that it is made of."""
        if self._megatron and not ordered:
            return self._megatron_ranges(self._megatron, first_index, count)
        if ordered:
            samples = np.arange(first_index, first_index + count) % self.num_samples
        else:
            samples = self.samples(first_index, count)
        length = self.sequence_length
        begins = (self.begin + samples * length).tolist()
        return [[(begin, begin + length + 1)] for begin in begins]

    def _megatron_ranges(
        self, order: MegatronOrder, first_index: int, count: int
    ) -> list[list[tuple[int, int]]]:
        if first_index + count > order.num_samples:
            raise DataError(
                f"sample {first_index + count - 1} is beyond the {order.num_samples} that were planned",
                where=self.name,
                fix="With Megatron-LM's order the length of a run is fixed when it begins.",
            )
        return [
            [(self.begin + begin, self.begin + end) for begin, end in order.ranges(index)]
            for index in range(first_index, first_index + count)
        ]


def samples_in(num_tokens: int, sequence_length: int) -> int:
    """Samples of ``sequence_length + 1`` tokens, consecutive ones sharing one token."""
    return max(0, (num_tokens - 1) // sequence_length)


def tokens_in(source: TokenSource, documents: tuple[int, int]) -> int:
    """Tokens of the documents [begin, end)."""
    return source.token_begin(documents[1]) - source.token_begin(documents[0])


def copy_ranges(source: TokenSource, ranges: Sequence[tuple[int, int]], row: npt.NDArray[np.int64]) -> None:
    """Copies ranges of a source's tokens one behind the other into a row, from its beginning."""
    tokens, at = source.tokens, 0
    for begin, end in ranges:
        row[at : at + end - begin] = tokens[begin:end]
        at += end - begin


def _document_begins(
    source: TokenSource, ranges: Sequence[tuple[int, int]]
) -> Iterator[npt.NDArray[np.int64]]:
    """The tokens within each range at which a document with any tokens begins."""
    bounds = np.array(ranges, dtype=np.int64)
    bounds[:, 1] -= 1
    for (begin, last_token), (first, last) in zip(ranges, source.documents_at(bounds).tolist(), strict=True):
        lengths = source.document_lengths(first, last + 1)
        begins = source.token_begin(first) + np.cumsum(lengths, dtype=np.int64) - lengths
        yield begins[(lengths > 0) & (begins >= begin) & (begins < last_token)]
