"""Clusters of near-duplicates: texts that share a band hash, directly or through others."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

import numpy as np
import numpy.typing as npt

_ENTRY = np.dtype([("hash", "<u8"), ("text", "<i8")])
_BYTES_PER_ENTRY = (
    80  # of memory while a partition is sorted: the entries, their order and what is taken of them
)
_CHUNK = 1 << 20
BLOCK = 1 << 15
"""So many texts of a shard have their band hashes side by side."""

Keep = Literal["first", "longest"]


class BandFile:
    """The band hashes of a shard on disk, 0 for a text without words: blocks of ``[bands, texts]`` of uint64.

    Args:
        path: A file that ``write`` made.
        bands: The number of bands.
    """

    def __init__(self, path: Path, bands: int) -> None:
        self.path = path
        self.bands = bands
        self.num_texts = path.stat().st_size // (8 * bands)

    @staticmethod
    def write(file: IO[bytes], hashes: npt.NDArray[np.uint64]) -> None:
        """Writes hashes of shape ``[texts, bands]``; each time but the last, of ``BLOCK`` texts."""
        for begin in range(0, len(hashes), BLOCK):
            file.write(np.ascontiguousarray(hashes[begin : begin + BLOCK].T, "<u8").data)

    def read(self, band: int) -> Iterator[npt.NDArray[np.uint64]]:
        """Reads the hashes of one band, a block at a time."""
        for begin in range(0, self.num_texts, BLOCK):
            count = min(BLOCK, self.num_texts - begin)
            yield np.fromfile(self.path, "<u8", count, offset=8 * (begin * self.bands + band * count))


def find_clusters(
    files: Sequence[BandFile],
    bands: int,
    path: Path,
    *,
    memory_bytes: int,
    on_read: Callable[[int], None] = lambda size: None,
) -> npt.NDArray[np.int64]:
    """Finds for each text the first text of its cluster, counted over all files.

    Band by band, entries (hash, text) are sorted, and texts of equal hashes are united in a disjoint-set
    forest (Tarjan 1975) whose array lies on disk. What does not fit into memory is partitioned by hash first.

    Args:
        files: The band hashes of all shards, in order.
        bands: The number of bands.
        path: The file of the result, which is mapped: one int64 a text.
        memory_bytes: What may be held in memory, besides what the system caches of the result.
        on_read: Told of the bytes of entries that are done.

    Returns:
        Text -> first text of its cluster; a text without near-duplicates, or without words, is its own.
    """
    num_texts = sum(file.num_texts for file in files)
    if not num_texts:
        path.write_bytes(b"")
        return np.zeros(0, np.int64)
    first = np.memmap(path, np.int64, "w+", shape=(num_texts,))
    for begin in range(0, num_texts, _CHUNK):
        first[begin : begin + _CHUNK] = np.arange(begin, min(begin + _CHUNK, num_texts))
    partitions = -(-num_texts * _BYTES_PER_ENTRY // max(memory_bytes, _CHUNK))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".bands-") as scratch:
        for band in range(bands):
            for entries in _partitions(files, band, partitions, Path(scratch)):
                _unite_equal(first, entries)
                on_read(8 * len(entries))
    for begin in range(0, num_texts, _CHUNK):
        _find(first, np.arange(begin, min(begin + _CHUNK, num_texts)))
    return first


def keep_longest(
    first: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], longest: npt.NDArray[np.int64]
) -> None:
    """Replaces the first text of each cluster by its longest; of equally long ones by the first of them.

    The arrays may be files that are mapped: little of them is held at a time.

    Args:
        first: What ``find_clusters`` found; text -> its cluster's longest text, when this returns.
        lengths: Text -> its length.
        longest: Of the same size; what is in it is written over.
    """
    for begin in range(0, len(first), _CHUNK):
        longest[begin : begin + _CHUNK] = np.arange(begin, min(begin + _CHUNK, len(first)))
    for begin in range(0, len(first), _CHUNK):
        clusters = first[begin : begin + _CHUNK]
        members = begin + np.flatnonzero(clusters != np.arange(begin, begin + len(clusters)))
        order = members[np.lexsort((members, -lengths[members], first[members]))]
        clusters = first[order]
        heads = np.flatnonzero(np.diff(clusters, prepend=-1))
        clusters, order = clusters[heads], order[heads]
        longer = lengths[order] > lengths[longest[clusters]]
        longest[clusters[longer]] = order[longer]
    for begin in range(0, len(first), _CHUNK):
        first[begin : begin + _CHUNK] = longest[first[begin : begin + _CHUNK]]


def _partitions(
    files: Sequence[BandFile], band: int, count: int, scratch: Path
) -> Iterator[npt.NDArray[np.void]]:
    """Yields the entries of a band in so many parts; equal hashes are in the same part."""
    if count == 1:
        yield np.concatenate(list(_entries(files, band)))
        return
    paths = [scratch / f"{number}.entries" for number in range(count)]
    for path in paths:
        path.write_bytes(b"")
    for entries in _entries(files, band):
        numbers = (entries["hash"] >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)
        for number in np.unique(numbers).tolist():
            with paths[number].open("ab") as file:
                file.write(entries[numbers == number].tobytes())
    for path in paths:
        yield np.fromfile(path, _ENTRY)


def _entries(files: Sequence[BandFile], band: int) -> Iterator[npt.NDArray[np.void]]:
    text = 0
    for file in files:
        for hashes in file.read(band):
            entries = np.empty(len(hashes), _ENTRY)
            entries["hash"] = hashes
            entries["text"] = np.arange(text, text + len(hashes))
            text += len(hashes)
            yield entries[hashes != 0]


def _unite_equal(first: npt.NDArray[np.int64], entries: npt.NDArray[np.void]) -> None:
    order = np.argsort(entries["hash"])
    hashes, texts = entries["hash"][order], entries["text"][order]
    equal = hashes[1:] == hashes[:-1]
    left, right = texts[:-1][equal], texts[1:][equal]
    while len(left):
        roots, others = _find(first, left), _find(first, right)
        differ = roots != others
        left, right = left[differ], right[differ]
        roots, others = roots[differ], others[differ]
        # Of several that would hang the same root somewhere one wins; the rest come round again.
        first[np.maximum(roots, others)] = np.minimum(roots, others)


def _find(first: npt.NDArray[np.int64], texts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the roots of texts, and makes them their parents."""
    roots = first[texts]
    while True:
        parents = first[roots]
        if np.array_equal(parents, roots):
            break
        roots = parents
    first[texts] = roots
    return roots
