"""The last step of every recipe: each shard is looked through and, on request, written as Parquet."""

import dataclasses
from pathlib import Path
from typing import Literal

from groundup.core.config import config
from groundup.core.executor.tasks import Done, Report
from groundup.core.files import checksum
from groundup.corpus.parquet_shard import write_parquet
from groundup.corpus.profile import ProfileTally
from groundup.corpus.shard import Shard, read_shard
from groundup.corpus.stage import Phase, Phases, Stage, StageRun

ShardFormat = Literal["jsonl", "parquet"]
"""JSON lines compressed with Zstandard, or Parquet."""

_ENDINGS: dict[ShardFormat, str] = {"jsonl": ".jsonl.zst", "parquet": ".parquet"}


@config
class Finish(Stage):
    """Writes the shards in the format that is asked for, and counts what their documents are like.

    Attributes:
        format: Of the shards.
    """

    kind: Literal["finish"] = "finish"
    format: ShardFormat = "jsonl"

    @property
    def is_barrier(self) -> bool:
        """False."""
        return False

    def phases(self, run: StageRun) -> Phases:
        """One phase: every shard a task."""
        yield Phase(
            name=self.kind,
            tasks=run.last_tasks(list(zip(run.inputs, run.outputs, strict=True))),
            work=_FinishShard(self.format),
            total_bytes=run.input_bytes,
        )

    def paths(self, run: StageRun) -> list[Path]:
        """The shards as they are to be published."""
        return [
            _path(before, after, self.format) for before, after in zip(run.inputs, run.outputs, strict=True)
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class _FinishShard:
    format: ShardFormat

    def __call__(self, shards: tuple[Shard, Shard], report: Report) -> Done:
        """Leaves the size and the checksum of the file in its result."""
        before, after = shards
        path = _path(before, after, self.format)
        tally = ProfileTally()
        documents = tally.counting(read_shard(before, on_read=report))
        if self.format == "parquet":
            write_parquet(path, documents)
        else:
            for _ in documents:
                pass
        entry = {"bytes": path.stat().st_size, "checksum": checksum(path)}
        return Done(
            files=[path.name] if path.parent == after.folder else [],
            result={"profile": tally.counts(), "file": entry},
        )


def _path(before: Shard, after: Shard, format: ShardFormat) -> Path:  # noqa: A002  # as users know it
    """JSON lines stay where the stage before has written them."""
    folder = before.folder if format == "jsonl" else after.folder
    return folder / f"{after.name}{_ENDINGS[format]}"
