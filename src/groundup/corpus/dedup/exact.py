"""Exact duplicates: the same words in the same order, whatever the white space between them."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from groundup.core.config import config
from groundup.core.executor.tasks import Done, Report
from groundup.core.files import atomic_write
from groundup.corpus.dedup.id_file import IdFile, ShardIds, id_path
from groundup.corpus.document import from_json_line, text_bytes
from groundup.corpus.shard import Shard, read_lines, read_shard, write_shard
from groundup.corpus.stage import BarrierStage, Phase, Phases, StageRun

_DUPLICATE = np.dtype([("document", "<u8"), ("first_shard", "<u8"), ("first", "<u8")])
_KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u8")])

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

    Keys of 16 bytes are scattered by value over as many files as there are shards, each of which is then
    looked through alone: about 100 bytes of memory for each document of one shard.
    """

    kind: Literal["exact_dedup"] = "exact_dedup"

    def phases(self, run: StageRun) -> Phases:
        """Keys of each shard; the duplicates among the keys of each part; each shard without them."""
        total = len(run.inputs)
        keys = [run.task("keys", shard.number, shard) for shard in run.inputs]
        yield Phase(
            name="exact_dedup: keys",
            tasks=keys,
            work=_WriteKeys(run.folder, total),
            total_bytes=run.input_bytes,
        )
        yield Phase(
            name="exact_dedup: compare",
            tasks=[run.task("duplicates", number, number) for number in range(total)],
            work=_FindDuplicates(run.folder, total),
            total_bytes=sum((run.folder / f"{task.name}.bin").stat().st_size for task in keys),
        )
        pairs = list(zip(run.inputs, run.outputs, strict=True))
        yield Phase(
            name="exact_dedup: drop",
            tasks=run.last_tasks(pairs),
            work=_DropDuplicates(run.folder, run.keep_dropped),
            total_bytes=run.input_bytes,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _WriteKeys:
    """Writes the keys of a shard, ordered by the part that they fall to."""

    folder: Path
    num_parts: int

    def __call__(self, shard: Shard, report: Report) -> Done:
        keys = bytearray()
        ids: list[str] = []
        for document in read_shard(shard, on_read=report):
            keys += text_key(document.text)
            ids.append(document.id)
        ids_path = id_path(self.folder, shard.number)
        with atomic_write(ids_path) as file:
            IdFile.write(file, ids)
        halves = np.frombuffer(keys, dtype="<u8").reshape(-1, 2)
        records = np.empty(len(halves), dtype=_KEY)
        records["high"], records["low"] = halves[:, 0], halves[:, 1]
        records["document"] = np.arange(len(halves))
        # Not by order: the modulus spreads keys evenly over any number of parts.
        parts = (records["low"] % np.uint64(self.num_parts)).astype(np.int64)
        done = _write_sections(self.folder, f"keys-{shard.number:05d}", records, parts, self.num_parts)
        return dataclasses.replace(done, files=[*done.files, ids_path.name])


@dataclasses.dataclass(frozen=True, slots=True)
class _FindDuplicates:
    """Finds, among the keys of all shards that fall to one part, those that came before."""

    folder: Path
    num_shards: int

    def __call__(self, part: int, report: Report) -> Done:
        sections = [
            _read_section(self.folder / f"keys-{shard:05d}.bin", part, _KEY)
            for shard in range(self.num_shards)
        ]
        report(sum(section.nbytes for section in sections))
        records = np.concatenate(sections)
        shards = np.repeat(np.arange(self.num_shards), [len(section) for section in sections])
        order = np.lexsort((records["document"], shards, records["low"], records["high"]))
        high, low = records["high"][order], records["low"][order]
        again = np.zeros(len(order), dtype=bool)
        again[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        first = order[np.maximum.accumulate(np.where(again, 0, np.arange(len(order))))][again]
        found = order[again]
        duplicates = np.empty(len(found), _DUPLICATE)
        duplicates["document"] = records["document"][found]
        duplicates["first_shard"], duplicates["first"] = shards[first], records["document"][first]
        return _write_sections(
            self.folder, f"duplicates-{part:05d}", duplicates, shards[found], self.num_shards
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _DropDuplicates:
    """Writes a shard without its duplicates."""

    folder: Path
    keep_dropped: bool

    def __call__(self, shards: tuple[Shard, Shard], report: Report) -> Done:
        before, after = shards
        duplicates: dict[int, tuple[int, int]] = {}
        for part in range(before.total):
            path = self.folder / f"duplicates-{part:05d}.bin"
            for document, *first in _read_section(path, before.number, _DUPLICATE).tolist():
                duplicates[document] = (first[0], first[1])
        ids = ShardIds(self.folder)
        with write_shard(after, keep_dropped=self.keep_dropped) as out:
            for number, line in enumerate(read_lines(before, on_read=report)):
                document = from_json_line(line)
                if number in duplicates:
                    because = f"kept in its place: {ids[duplicates[number]]}"
                    out.drop(document, "exact_duplicate", "seen before", because=because)
                else:
                    out.keep_line(line, text_bytes(document.text))
        return out.done()


def _write_sections(
    folder: Path, name: str, values: npt.NDArray[Any], parts: npt.NDArray[np.int64], num_parts: int
) -> Done:
    """Writes values grouped by part, behind int64: number of parts, first value of each, number of values."""
    head = np.zeros(num_parts + 2, dtype="<i8")
    head[0] = num_parts
    np.cumsum(np.bincount(parts, minlength=num_parts), out=head[2:])
    path = folder / f"{name}.bin"
    with atomic_write(path) as file:
        file.write(head.tobytes())
        file.write(values[np.argsort(parts, kind="stable")].tobytes())
    return Done(files=[path.name], result={})


def _read_section(path: Path, part: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    with path.open("rb") as file:
        num_parts = int(np.frombuffer(file.read(8), dtype="<i8")[0])
        file.seek(8 * (1 + part))
        begin, end = np.frombuffer(file.read(16), dtype="<i8").tolist()
        file.seek(8 * (num_parts + 2) + begin * dtype.itemsize)
        return np.frombuffer(file.read((end - begin) * dtype.itemsize), dtype=dtype)
