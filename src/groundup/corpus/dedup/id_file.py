"""The ids of documents on disk, to name the one that is kept in place of a duplicate."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from groundup.core.files import atomic_write


class IdWriter:
    """Writes the ids of a shard: where each ends as int64, behind a 0, and all of them as UTF-8."""

    def __init__(self, ends: IO[bytes], content: IO[bytes]) -> None:
        self._ends = ends
        self._content = content
        self._total = np.int64(0)
        ends.write(self._total.tobytes())

    def add(self, ids: Sequence[str]) -> None:
        """Writes the ids of the documents that follow."""
        encoded = [identity.encode() for identity in ids]
        ends = self._total + np.cumsum(list(map(len, encoded)), dtype="<i8")
        self._ends.write(ends.tobytes())
        self._content.write(b"".join(encoded))
        self._total = ends[-1] if len(ends) else self._total


class IdFile:
    """The ids of a shard, by number.

    Args:
        folder: Of the stage that wrote them.
        shard: Whose they are.
    """

    def __init__(self, folder: Path, shard: int) -> None:
        ends, content = (folder / name for name in self.names(shard))
        self._ends = np.memmap(ends, "<i8", "r")
        self._content = np.memmap(content, np.uint8, "r")

    @staticmethod
    def names(shard: int) -> tuple[str, str]:
        """Returns the names of its two files."""
        return f"id-ends-{shard:05d}.bin", f"ids-{shard:05d}.bin"

    @classmethod
    @contextlib.contextmanager
    def written(cls, folder: Path, shard: int) -> Iterator[IdWriter]:
        """Writes both files, which appear when all is written."""
        ends, content = (folder / name for name in cls.names(shard))
        with atomic_write(ends) as ends_file, atomic_write(content) as content_file:
            yield IdWriter(ends_file, content_file)

    def __getitem__(self, number: int) -> str:
        begin, end = self._ends[number : number + 2].tolist()
        return self._content[begin:end].tobytes().decode()


class ShardIds:
    """The ids of the documents of all shards, by shard and number.

    Args:
        folder: Of the stage that wrote them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, IdFile] = {}

    def __getitem__(self, place: tuple[int, int]) -> str:
        shard, number = map(int, place)
        if shard not in self._files:
            self._files[shard] = IdFile(self._folder, shard)
        return self._files[shard][number]
