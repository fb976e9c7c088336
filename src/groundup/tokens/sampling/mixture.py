"""Several sources as one: which source comes at an index, by weights, computed and never stored.

The sources are the leaves of a Huffman tree of their weights. At each node the lighter child takes the
n-th sample when round(n * share) grows: the largest remainder of two. So each prefix of the stream
holds every source's share to within a sample or so, for any weights, and a position is found in as many
steps as the tree is deep.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from groundup.tokens.sampling.dataset import Samples, Span

_Node = int | tuple["_Node", "_Node", float]
"""A source, or (lighter child, heavier child, the lighter one's share, at most one half)."""


class Turns(Protocol):
    """The order in which sources take turns."""

    def at(self, positions: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The source at each position, and how many of its samples came before: int64 of the same shape."""
        ...

    def counts(self, length: int) -> list[int]:
        """Samples of each source among the first ``length``; they add up to it."""
        ...

    def longest(self, limits: Sequence[int]) -> int:
        """The longest prefix that holds at most so many samples of each source."""
        ...


class Interleaving:
    """The order in which sources take turns, without a state.

    Args:
        weights: Of each source, at least 0 and not all 0; they need not add up to 1.

    Raises:
        ValueError: They are not.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        if not weights or not all(0 <= weight < math.inf for weight in weights) or not any(weights):
            raise ValueError(f"weights are at least 0 and not all 0, not {list(weights)}")
        self.num_sources = len(weights)
        heap: list[tuple[float, int, _Node]] = [
            (weight, source, source) for source, weight in enumerate(weights) if weight
        ]
        heapq.heapify(heap)
        for number in range(len(weights), len(weights) + len(heap) - 1):
            light, _, lighter = heapq.heappop(heap)
            heavy, _, heavier = heapq.heappop(heap)
            heapq.heappush(heap, (light + heavy, number, (lighter, heavier, light / (light + heavy))))
        self._root = heap[0][2]

    def at(self, positions: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The source at each position, and how many of its samples came before: int64 of the same shape."""
        given = np.asarray(positions, dtype=np.int64)
        sources, counts = np.empty_like(given), np.empty_like(given)

        def descend(node: _Node, where: Any, numbers: npt.NDArray[np.int64]) -> None:
            if isinstance(node, int):
                sources[where], counts[where] = node, numbers
                return
            lighter, heavier, share = node
            before = _taken(numbers, share)
            takes = _taken(numbers + 1, share) > before
            descend(lighter, tuple(axis[takes] for axis in where), before[takes])
            descend(heavier, tuple(axis[~takes] for axis in where), (numbers - before)[~takes])

        everywhere = np.nonzero(np.ones_like(given, dtype=np.bool_))
        descend(self._root, everywhere, given[everywhere])
        return sources, counts

    def counts(self, length: int) -> list[int]:
        """Samples of each source among the first ``length``; they add up to it."""
        counts = [0] * self.num_sources

        def descend(node: _Node, number: int) -> None:
            if isinstance(node, int):
                counts[node] = number
                return
            lighter, heavier, share = node
            taken = int(_taken(np.int64(number), share))
            descend(lighter, taken)
            descend(heavier, number - taken)

        descend(self._root, length)
        return counts

    def longest(self, limits: Sequence[int]) -> int:
        """The longest prefix that holds at most so many samples of each source."""

        def longest(node: _Node) -> int:
            if isinstance(node, int):
                return limits[node]
            lighter, heavier, share = node
            few, many = longest(lighter), longest(heavier)
            # Both counts grow with the prefix: bisect for the last one within both.
            low, high = 0, few + many
            while low < high:
                middle = (low + high + 1) // 2
                taken = int(_taken(np.int64(middle), share))
                low, high = (middle, high) if taken <= few and middle - taken <= many else (low, middle - 1)
            return low

        return longest(self._root)


def _taken(numbers: Any, share: float) -> Any:
    """Samples of the lighter child among the first ``numbers``: rounded, so monotone and exact in float64."""
    return np.floor(numbers * share + 0.5).astype(np.int64)


class MixtureDataset:
    """The samples of several datasets, interleaved by weights; see ``Samples``.

    Args:
        datasets: Of the same sequence length.
        interleaving: Of their samples.
        name: For messages.
    """

    def __init__(self, datasets: Sequence[Samples], interleaving: Turns, *, name: str) -> None:
        self.datasets = tuple(datasets)
        self.interleaving = interleaving
        self.name = name
        self.sequence_length = datasets[0].sequence_length
        assert all(dataset.sequence_length == self.sequence_length for dataset in datasets)
        self.num_tokens = sum(dataset.num_tokens for dataset in datasets)
        self.num_samples = self.interleaving.longest([dataset.num_samples for dataset in datasets])

    @property
    def num_documents(self) -> int:
        """See ``Samples.num_documents``."""
        return sum(dataset.num_documents for dataset in self.datasets)

    def batch(self, first_index: int, count: int, *, ordered: bool = False) -> npt.NDArray[np.int64]:
        """See ``Samples.batch``; ``ordered`` takes each source in file order, interleaved."""
        batch = np.empty((count, self.sequence_length + 1), dtype=np.int64)
        for dataset, rows, first in self._runs(first_index, count):
            batch[rows] = dataset.batch(first, len(rows), ordered=ordered)
        return batch

    def document_starts(
        self, first_index: int, count: int, *, ordered: bool = False
    ) -> npt.NDArray[np.bool_]:
        """See ``Samples.document_starts``."""
        starts = np.empty((count, self.sequence_length + 1), dtype=np.bool_)
        for dataset, rows, first in self._runs(first_index, count):
            starts[rows] = dataset.document_starts(first, len(rows), ordered=ordered)
        return starts

    def spans(self, index: int, *, ordered: bool = False) -> list[Span]:
        """See ``Samples.spans``."""
        sources, counts = self.interleaving.at([index])
        return self.datasets[int(sources[0])].spans(int(counts[0]), ordered=ordered)

    def _runs(self, first_index: int, count: int) -> list[tuple[Samples, npt.NDArray[np.int64], int]]:
        """Each source in the batch: itself, its rows, and the index of its first sample there."""
        sources, counts = self.interleaving.at(np.arange(first_index, first_index + count))
        runs = []
        for source in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == source)
            runs.append((self.datasets[source], rows, int(counts[rows[0]])))
        return runs
