"""Exact duplicates: the same words in the same order, whatever the white space between them."""

import dataclasses
import itertools
import math
import os
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from groundup.core.config import config
from groundup.core.config_class import PositiveFloat
from groundup.core.executor.tasks import Done, Report
from groundup.core.files import atomic_write
from groundup.corpus.dedup.id_file import IdFile, ShardIds
from groundup.corpus.document import from_json_line, text_bytes
from groundup.corpus.shard import Shard, read_lines, read_shard, write_shard
from groundup.corpus.stage import BarrierStage, Phase, Phases, StageRun

_DUPLICATE = np.dtype([("document", "<u8"), ("first_shard", "<u8"), ("first", "<u8")])
_KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u8")])
_BYTES_PER_KEY = 120  # of memory while a part is sorted
_BLOCK = 1 << 17  # keys of a shard that are held at a time
_TASKS_AT_ONCE = 16
_LEAST_KEYS = 1 << 14  # of a part: fewer would make more files than they save memory
_GIGABYTE = 1 << 30

_PIECE_CHARACTERS = 1 << 20
"""A long text is taken in pieces: its words as a list would need 15 times its size."""


def text_key(text: str) -> bytes:
    """The xxh3-128 (16 bytes) of the text with every run of white space made one blank.

    Two different texts among a billion share a key with a probability of about 1.5e-21 (n^2 / 2^129).
    """
    if len(text) <= _PIECE_CHARACTERS:
        return xxhash.xxh3_128_digest(" ".join(text.split()).encode())
    digest = xxhash.xxh3_128()
    blank = started = False  # whether white space, and whether a word, stands before this piece
    for start in range(0, len(text), _PIECE_CHARACTERS):
        piece = text[start : start + _PIECE_CHARACTERS]
        words = piece.split()
        if words:
            if started and (blank or piece[0].isspace()):
                digest.update(b" ")
            digest.update(" ".join(words).encode())
            started = True
            blank = piece[-1].isspace()
        else:
            blank = True
    return digest.digest()


@config
class ExactDedup(BarrierStage):
    """Drops documents whose words were seen before; the first in the order of the input stays.

    Keys of 16 bytes are scattered by value over files, each of which is then looked through alone.

    Attributes:
        memory_gigabytes: What up to 16 workers together may hold for it; the result does not depend on it.
    """

    kind: Literal["exact_dedup"] = "exact_dedup"
    memory_gigabytes: PositiveFloat = 2.0

    @property
    def settings(self) -> dict[str, Any]:
        """All but the memory."""
        return {name: value for name, value in super().settings.items() if name != "memory_gigabytes"}

    def phases(self, run: StageRun) -> Phases:
        """Keys of each shard; the duplicates among the keys of each part; each shard without them."""
        counts = [result["documents"] for result in run.input_results]
        keys_at_once = max(_LEAST_KEYS, self.memory_gigabytes * _GIGABYTE / _TASKS_AT_ONCE / _BYTES_PER_KEY)
        num_parts = max(len(run.inputs), math.ceil(sum(counts) / keys_at_once))
        keys = [run.task(f"keys-of-{num_parts}", shard.number, shard) for shard in run.inputs]
        yield Phase(
            name="exact_dedup: keys",
            tasks=keys,
            work=_WriteKeys(run.folder, num_parts),
            total_bytes=run.input_bytes,
        )
        duplicates = [run.task(f"duplicates-of-{num_parts}", number, number) for number in range(num_parts)]
        yield Phase(
            name="exact_dedup: compare",
            tasks=duplicates,
            work=_FindDuplicates(run.folder, len(run.inputs), num_parts),
            total_bytes=sum((run.folder / f"{task.name}.bin").stat().st_size for task in keys),
        )
        yield Phase(
            name="exact_dedup: drop",
            tasks=run.last_tasks(list(zip(run.inputs, run.outputs, strict=True))),
            work=_DropDuplicates(run.folder, num_parts, run.keep_dropped),
            total_bytes=run.input_bytes,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _WriteKeys:
    """Writes the keys of a shard, blocks of them, each ordered by the part that they fall to."""

    folder: Path
    num_parts: int

    def __call__(self, shard: Shard, report: Report) -> Done:
        path = self.folder / f"keys-of-{self.num_parts}-{shard.number:05d}.bin"
        keyed = ((text_key(document.text), document.id) for document in read_shard(shard, on_read=report))
        first = 0
        with atomic_write(path) as file, IdFile.written(self.folder, shard.number) as ids:
            while block := list(itertools.islice(keyed, _BLOCK)):
                ids.add([identity for _, identity in block])
                halves = np.frombuffer(b"".join(key for key, _ in block), dtype="<u8").reshape(-1, 2)
                records = np.empty(len(halves), dtype=_KEY)
                records["high"], records["low"] = halves[:, 0], halves[:, 1]
                records["document"] = np.arange(first, first + len(halves))
                first += len(halves)
                # Not by order: the modulus spreads keys evenly over any number of parts.
                parts = (records["low"] % np.uint64(self.num_parts)).astype(np.int64)
                _write_sections(file, records, parts, self.num_parts)
        return Done(files=[path.name, *IdFile.names(shard.number)], result={})


@dataclasses.dataclass(frozen=True, slots=True)
class _FindDuplicates:
    """Finds, among the keys of all shards that fall to one part, those that came before."""

    folder: Path
    num_shards: int
    num_parts: int

    def __call__(self, part: int, report: Report) -> Done:
        sections = [
            _read_section(
                self.folder / f"keys-of-{self.num_parts}-{shard:05d}.bin", part, self.num_parts, _KEY
            )
            for shard in range(self.num_shards)
        ]
        report(sum(section.nbytes for section in sections))
        shards = np.repeat(np.arange(self.num_shards), [len(section) for section in sections])
        records = np.concatenate(sections)
        sections.clear()
        order = np.lexsort((records["document"], shards, records["low"], records["high"]))
        high, low = records["high"][order], records["low"][order]
        again = np.zeros(len(order), dtype=bool)
        again[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        first = order[np.maximum.accumulate(np.where(again, 0, np.arange(len(order))))][again]
        found = order[again]
        duplicates = np.empty(len(found), _DUPLICATE)
        duplicates["document"] = records["document"][found]
        duplicates["first_shard"], duplicates["first"] = shards[first], records["document"][first]
        path = self.folder / f"duplicates-of-{self.num_parts}-{part:05d}.bin"
        with atomic_write(path) as file:
            _write_sections(file, duplicates, shards[found], self.num_shards)
        return Done(files=[path.name], result={})


@dataclasses.dataclass(frozen=True, slots=True)
class _DropDuplicates:
    """Writes a shard without its duplicates."""

    folder: Path
    num_parts: int
    keep_dropped: bool

    def __call__(self, shards: tuple[Shard, Shard], report: Report) -> Done:
        before, after = shards
        paths = [
            self.folder / f"duplicates-of-{self.num_parts}-{part:05d}.bin" for part in range(self.num_parts)
        ]
        found = np.concatenate(
            [_read_section(path, before.number, before.total, _DUPLICATE) for path in paths]
        )
        duplicates = iter(found[np.argsort(found["document"])])
        ids = ShardIds(self.folder)
        following = next(duplicates, None)
        with write_shard(after, keep_dropped=self.keep_dropped) as out:
            for number, line in enumerate(read_lines(before, on_read=report)):
                document = from_json_line(line)
                if following is not None and following["document"] == number:
                    because = f"kept in its place: {ids[following['first_shard'], following['first']]}"
                    out.drop(document, "exact_duplicate", "seen before", because=because)
                    following = next(duplicates, None)
                else:
                    out.keep_line(line, text_bytes(document.text))
        return out.done()


def _write_sections(
    file: IO[bytes], values: npt.NDArray[Any], parts: npt.NDArray[np.int64], num_parts: int
) -> None:
    """Writes a block: values grouped by part, behind int64: first value of each, number of values."""
    head = np.zeros(num_parts + 1, dtype="<i8")
    np.cumsum(np.bincount(parts, minlength=num_parts), out=head[1:])
    file.write(head.tobytes())
    file.write(values[np.argsort(parts, kind="stable")].tobytes())


def _read_section(path: Path, part: int, num_parts: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values of a part in all blocks of a file."""
    found = [np.zeros(0, dtype)]
    with path.open("rb") as file:
        while head := file.read(8 * (num_parts + 1)):
            begin, end, total = np.frombuffer(head, "<i8")[[part, part + 1, -1]].tolist()
            file.seek(begin * dtype.itemsize, os.SEEK_CUR)
            found.append(np.frombuffer(file.read((end - begin) * dtype.itemsize), dtype))
            file.seek((total - end) * dtype.itemsize, os.SEEK_CUR)
    return np.concatenate(found)
