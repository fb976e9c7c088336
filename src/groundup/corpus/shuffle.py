"""The stage that shuffles documents, however many.

Document number ``index`` of the whole input gets the random key ``xxh3_64(index, seed)``, and the documents
are put in the order of their keys. So the order depends on
the seed and the order before alone: not on the number of shards, nor on who does what.
"""

import dataclasses
import itertools
import struct
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import xxhash
import zstandard

from groundup.core.config import config
from groundup.core.executor.tasks import Done, Report
from groundup.core.files import atomic_write
from groundup.corpus.document import from_json_line, text_bytes
from groundup.corpus.shard import Shard, read_lines, write_shard
from groundup.corpus.stage import BarrierStage, Phase, Phases, StageRun

_HEADER = struct.Struct("<QQI")  # key, index, length of the line in bytes
_LEVEL = 1


@config
class Shuffle(BarrierStage):
    """Puts the documents in a random order.

    A worker holds the text of one shard: more shards need less memory.

    Attributes:
        seed: Another seed is another order.
    """

    kind: Literal["shuffle"] = "shuffle"
    seed: Annotated[int, pydantic.Field(ge=0, lt=1 << 64)] = 0

    def phases(self, run: StageRun) -> Phases:
        """Each shard scattered by key; each new shard gathered and sorted."""
        counts = [result["documents"] for result in run.input_results]
        before = itertools.accumulate(counts, initial=0)
        scatter = [
            run.task("scatter", shard.number, (shard, first))
            for shard, first in zip(run.inputs, before, strict=False)
        ]
        yield Phase(
            name="shuffle: scatter",
            tasks=scatter,
            work=_Scatter(run.folder, self.seed),
            total_bytes=run.input_bytes,
        )
        yield Phase(
            name="shuffle: gather",
            tasks=run.last_tasks(run.outputs),
            work=_Gather(run.folder, run.keep_dropped),
            total_bytes=sum((run.folder / f"{task.name}.bin").stat().st_size for task in scatter),
        )


def key_of(index: int, seed: int) -> int:
    """The place of a document in the order of a seed, 0 to 2^64 - 1."""
    return xxhash.xxh3_64_intdigest(index.to_bytes(8, "little"), seed=seed)


@dataclasses.dataclass(frozen=True, slots=True)
class _Scatter:
    """Writes the lines of a shard with their keys, by the shard that they go to."""

    folder: Path
    seed: int

    def __call__(self, task_input: tuple[Shard, int], report: Report) -> Done:
        shard, first = task_input
        sections = [bytearray() for _ in range(shard.total)]
        for index, line in enumerate(read_lines(shard, on_read=report), first):
            key = key_of(index, self.seed)
            section = sections[key * shard.total >> 64]
            section += _HEADER.pack(key, index, len(line))
            section += line
        compressor = zstandard.ZstdCompressor(level=_LEVEL)
        path = self.folder / f"scatter-{shard.number:05d}.bin"
        sizes = []
        with atomic_write(path) as file:
            file.write(bytes(8 * shard.total))
            for section in sections:
                sizes.append(file.write(compressor.compress(section)) if section else 0)
                section.clear()
            file.seek(0)
            file.write(struct.pack(f"<{shard.total}Q", *itertools.accumulate(sizes)))
        return Done(files=[path.name], result={})


@dataclasses.dataclass(frozen=True, slots=True)
class _Gather:
    """Writes a shard from what all tasks before have scattered to it."""

    folder: Path
    keep_dropped: bool

    def __call__(self, shard: Shard, report: Report) -> Done:
        content = bytearray()
        for number in range(shard.total):
            packed = self._section(number, shard)
            report(len(packed))
            if packed:
                content += zstandard.ZstdDecompressor().decompress(packed)
        entries = []
        at = 0
        while at < len(content):
            key, index, size = _HEADER.unpack_from(content, at)
            at += _HEADER.size
            entries.append((key, index, at, at + size))
            at += size
        entries.sort()
        with write_shard(shard, keep_dropped=self.keep_dropped) as out:
            for _, _, begin, end in entries:
                line = bytes(content[begin:end])
                out.keep_line(line, text_bytes(from_json_line(line).text))
        return out.done()

    def _section(self, number: int, shard: Shard) -> bytes:
        with (self.folder / f"scatter-{number:05d}.bin").open("rb") as file:
            ends = (0, *struct.unpack(f"<{shard.total}Q", file.read(8 * shard.total)))
            file.seek(8 * shard.total + ends[shard.number])
            return file.read(ends[shard.number + 1] - ends[shard.number])
