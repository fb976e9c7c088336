"""What a stage of a recipe is: it turns the shards of the stage before it into as many shards of its own.

A stage is a ``@config`` class with a ``kind``, a child of ``MapStage`` where a shard depends only on the same
shard of the stage before it, else of ``BarrierStage``. Its work is cut into phases of tasks, which run in
any order and on any machine; when all tasks of a phase are done, their results are there for the next one.
The last phase leaves the stage's shards.
"""

import abc
import dataclasses
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from groundup import __version__
from groundup.core.config import to_dict
from groundup.core.executor.tasks import Done, Report, Task, Work
from groundup.core.manifest import fingerprint
from groundup.corpus.document import Document
from groundup.corpus.shard import Shard, ShardWriter, read_shard, write_shard
from groundup.corpus.source_ranges import ShardSources


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Tasks that wait for no other of them.

    Attributes:
        name: What is done, for progress.
        tasks: Their names are unique in the stage.
        work: What is done to each; reports the bytes it has read, or a ``ReadReport``.
        total_bytes: What all tasks report in the end.
        for_every_rank: Whether each rank of an array does them all, instead of a share: for little work that
            the rest waits for.
    """

    name: str
    tasks: Sequence[Task[Any]]
    work: Work[Any]
    total_bytes: int
    for_every_rank: bool = False


Results = list[dict[str, Any]]
"""What the tasks of a phase left in their markers, in the order of the tasks."""

Phases = Generator[Phase, Results, None]
"""The phases of a stage, one after the other: ``results = yield Phase(...)``."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """A stage in a run: where it reads and writes.

    Attributes:
        folder: The stage's own, for its shards and whatever else its tasks leave.
        inputs: The shards of the stage before; none for the one that reads the sources.
        sources: What each shard of that one is read from.
        quarantine: Whether bad records are kept.
        outputs: The shards that the last phase writes, one for each of its tasks, under their names and
            fingerprints.
        keep_dropped: Whether dropped documents are kept whole.
        input_results: What the tasks of ``inputs`` left in their markers, ``documents`` among it; for
            barriers.
        behind: The run of the stage whose tasks do this one's work too, and this one's place behind it, from
            0: then it has no tasks of its own.
    """

    folder: Path
    inputs: tuple[Shard, ...]
    outputs: tuple[Shard, ...]
    keep_dropped: bool
    sources: tuple[ShardSources, ...] = ()
    quarantine: bool = False
    input_results: Sequence[dict[str, Any]] = ()
    behind: "tuple[StageRun, int] | None" = None

    def task(self, name: str, number: int, task_input: Any) -> Task[Any]:
        """A task of a phase before the last, whose files are removed when the stage is done.

        Args:
            name: Of the phase; the files of the task may begin with its name.
            number: Of the task.
            task_input: What its work is given.
        """
        of_stage = fingerprint([name, number, [shard.fingerprint for shard in self.outputs]])
        return Task(name=f"{name}-{number:05d}", fingerprint=of_stage, input=task_input)

    def last_tasks(self, inputs: Sequence[Any]) -> list[Task[Any]]:
        """The tasks of the last phase, given their inputs in the order of ``outputs``."""
        return [
            Task(name=shard.name, fingerprint=shard.fingerprint, input=task_input)
            for shard, task_input in zip(self.outputs, inputs, strict=True)
        ]

    @property
    def input_bytes(self) -> int:
        """Size of the input shards on disk, as far as they are there."""
        return sum(shard.path.stat().st_size for shard in self.inputs if shard.path.is_file())


class Stage(abc.ABC):
    """One stage of a recipe."""

    kind: str

    @property
    @abc.abstractmethod
    def is_barrier(self) -> bool:
        """Whether a shard depends on all shards of the stage before."""

    @abc.abstractmethod
    def phases(self, run: StageRun) -> Phases:
        """Yields its phases; the last one leaves ``run.outputs``."""

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings that decide what it writes."""
        return to_dict(self)

    def fingerprints(self, inputs: Sequence[str], options: Sequence[bool]) -> list[str]:
        """The fingerprint of each output shard: of all that decides its content.

        Args:
            inputs: Those of the input shards.
            options: Of the whole recipe.
        """
        settings = [__version__, self.settings, list(options)]
        if self.is_barrier:
            return [fingerprint([settings, list(inputs), number]) for number in range(len(inputs))]
        return [fingerprint([settings, mark]) for mark in inputs]


class BarrierStage(Stage):
    """A stage that looks at all shards before it writes any."""

    @property
    def is_barrier(self) -> bool:
        """True."""
        return True


class MapStage(Stage):
    """A stage that maps each shard by itself."""

    @property
    def is_barrier(self) -> bool:
        """False."""
        return False

    @abc.abstractmethod
    def process(self, document: Document, out: ShardWriter) -> None:
        """Keeps, edits or drops a document."""

    def phases(self, run: StageRun) -> Phases:
        """One phase: every shard a task."""
        pairs = list(zip(run.inputs, run.outputs, strict=True))
        yield Phase(
            name=self.kind,
            tasks=run.last_tasks(pairs),
            work=MapShard(self, run.keep_dropped),
            total_bytes=run.input_bytes,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class MapShard:
    """The work of a task of a map stage."""

    stage: MapStage
    keep_dropped: bool

    def __call__(self, shards: tuple[Shard, Shard], report: Report) -> Done:
        """Writes the second shard from the first."""
        before, after = shards
        with write_shard(after, keep_dropped=self.keep_dropped) as out:
            for document in read_shard(before, on_read=report):
                self.stage.process(document, out)
        return out.done()
