"""The ids of documents on disk, to name the one that is kept in place of a duplicate."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np


class IdFile:
    """The ids of a shard: their number, the end of each as int64, and all of them as UTF-8.

    Args:
        path: A file that ``write`` made.
    """

    def __init__(self, path: Path) -> None:
        self._ends = np.memmap(path, "<i8", "r")
        self._bytes = np.memmap(path, np.uint8, "r")
        self._begin = 8 * (1 + int(self._ends[0]))

    @staticmethod
    def write(file: IO[bytes], ids: Sequence[str]) -> None:
        """Writes the ids of a shard."""
        encoded = [identity.encode() for identity in ids]
        ends = np.array([len(ids), *itertools.accumulate(map(len, encoded))], "<i8")
        content = b"".join(encoded)
        file.write(ends.tobytes() + content + bytes(-len(content) % 8))

    def __getitem__(self, number: int) -> str:
        begin = int(self._ends[number]) if number else 0
        end = int(self._ends[number + 1])
        return self._bytes[self._begin + begin : self._begin + end].tobytes().decode()


class ShardIds:
    """The ids of the documents of all shards, by shard and number.

    Args:
        folder: Where each shard's lie, under ``id_path``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, IdFile] = {}

    def __getitem__(self, place: tuple[int, int]) -> str:
        shard, number = place
        if shard not in self._files:
            self._files[shard] = IdFile(id_path(self._folder, shard))
        return self._files[shard][number]


def id_path(folder: Path, shard: int) -> Path:
    """The file of a shard's ids in the folder of a stage."""
    return folder / f"ids-{shard:05d}.bin"
