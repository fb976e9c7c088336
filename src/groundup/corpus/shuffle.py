"""A seeded shuffle of lines that need not fit in memory.

Line number ``index`` gets the random key ``xxh3_64(index, seed)``, and the lines are put in the order of
their keys. So the result is a pure function of (seed, input order): how much memory there is and into how
many buckets the lines are scattered change nothing.
"""

import shutil
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import xxhash

DEFAULT_MEMORY_BYTES = 1 << 28
DEFAULT_NUM_BUCKETS = 256

_HEADER = struct.Struct("<QQI")  # key, index, length of the line in bytes
_LINE_OVERHEAD_BYTES = 200  # what an entry of _Held takes beside the line, about


def shuffle_lines(
    lines: Iterable[bytes],
    *,
    seed: int,
    scratch_dir: Path,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    num_buckets: int = DEFAULT_NUM_BUCKETS,
) -> Iterator[bytes]:
    """The lines in a random order.

    Lines of up to ``memory_bytes`` in all are sorted in memory. More are scattered by key into files in
    ``scratch_dir`` (they take as much disk as the lines themselves) and sorted bucket by bucket: memory
    is then ``memory_bytes`` or the largest bucket, about the whole divided by ``num_buckets``.

    Args:
        lines: What to shuffle; each under 4 GiB.
        seed: 0 to 2^64-1.
        scratch_dir: A folder for the buckets; made when needed and removed at the end.
        memory_bytes: How much may be held in memory.
        num_buckets: Into how many files to scatter; each is held open meanwhile.
    """
    held = _Held()
    buckets: _Buckets | None = None
    try:
        for index, line in enumerate(lines):
            held.add(xxhash.xxh3_64_intdigest(index.to_bytes(8, "little"), seed=seed), index, line)
            if held.size_bytes > memory_bytes:
                buckets = buckets or _Buckets(scratch_dir, num_buckets)
                buckets.scatter(held)
                held = _Held()
        if buckets is None:
            yield from held.in_order()
            return
        buckets.scatter(held)
        held = _Held()
        yield from buckets.gather()
    finally:
        if buckets is not None:
            buckets.remove()


class _Held:
    """Lines in memory, end to end in one buffer: as objects of their own they fragment the heap."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._entries: list[tuple[int, int, int, int]] = []  # key, index, begin, end

    @property
    def size_bytes(self) -> int:
        return len(self._content) + _LINE_OVERHEAD_BYTES * len(self._entries)

    def add(self, key: int, index: int, line: bytes) -> None:
        begin = len(self._content)
        self._content += line
        self._entries.append((key, index, begin, len(self._content)))

    def __iter__(self) -> Iterator[tuple[int, int, bytes]]:
        """Key, index and line, as they were added."""
        for key, index, begin, end in self._entries:
            yield key, index, bytes(self._content[begin:end])

    def in_order(self) -> Iterator[bytes]:
        """The lines by key."""
        self._entries.sort()
        for _, _, begin, end in self._entries:
            yield bytes(self._content[begin:end])


class _Buckets:
    """Files of keyed lines; every key of one is below every key of the next."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        folder.mkdir(parents=True, exist_ok=True)
        self._files = [(folder / f"bucket-{number:05d}").open("wb") for number in range(count)]

    def scatter(self, held: _Held) -> None:
        for key, index, line in held:
            file = self._files[key * self._count >> 64]
            file.write(_HEADER.pack(key, index, len(line)))
            file.write(line)

    def gather(self) -> Iterator[bytes]:
        """All lines by key; each bucket's file is removed when it is in memory."""
        for file in self._files:
            file.close()
        for number in range(self._count):
            path = self._folder / f"bucket-{number:05d}"
            held = _Held()
            with path.open("rb") as bucket:
                while header := bucket.read(_HEADER.size):
                    key, index, size = _HEADER.unpack(header)
                    held.add(key, index, bucket.read(size))
            path.unlink()
            yield from held.in_order()

    def remove(self) -> None:
        for file in self._files:
            file.close()
        shutil.rmtree(self._folder, ignore_errors=True)
