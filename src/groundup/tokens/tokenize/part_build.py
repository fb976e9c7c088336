"""Doing the parts of a build: whole parts in each of many processes, or a few parts shared by all.

With many parts each process reads, tokenizes and writes its own, so that none waits for another. With few,
this process reads and writes and the others tokenize, so that they all have work to the end.
"""

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from groundup.core.executor.local import Worker
from groundup.core.executor.tasks import Done, Markers, Report, Task
from groundup.corpus.blocks import read_blocks
from groundup.tokens.tokenize.part_files import PartWriter
from groundup.tokens.tokenize.parts import Part
from groundup.tokens.tokenize.tokenize_batch import Batch, BatchTokenizer, TokenizedBatch, batches_of
from groundup.tokens.tokenize.workers import tokenize_batches

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class BatchReport:
    """What happened since the last report of the same process.

    Attributes:
        part: The number of the part.
        read_bytes: Taken from disk.
        text_bytes: Tokenized, of all keys.
        tokens: Written, of all keys.
        good: Records read well.
        bad: Where, reason and detail of those that were not.
        reading: Seconds.
        tokenizing: Seconds; 0 where other processes do it.
        writing: Seconds.
    """

    part: int
    read_bytes: int
    text_bytes: int
    tokens: int
    good: int
    bad: list[tuple[str, str, str]]
    reading: float
    tokenizing: float
    writing: float


@dataclasses.dataclass(frozen=True, slots=True)
class BuildPart:
    """Reads, tokenizes and writes a part in one process: the work of a task.

    Attributes:
        tokenize: What is done to each batch.
        folder: Where the pieces go.
        quarantine: Whether bad records are kept.
    """

    tokenize: BatchTokenizer
    folder: Path
    quarantine: bool

    def __call__(self, part: Part, report: Report) -> Done:
        """Does a part."""
        clock = _Clock()
        with PartWriter(part, self.folder, self.tokenize.keys, quarantine=self.quarantine) as writer:
            for batch in clock.timed(self._batches(part, clock)):
                result = self.tokenize(batch.blocks)
                report(_add(writer, batch, result, clock, result.seconds))
        assert writer.done, "it was left without an error"
        return writer.done

    def share(
        self,
        tasks: Sequence[Task[Part]],
        markers: Markers,
        workers: Sequence[Worker],
        *,
        on_report: Report,
    ) -> None:
        """Does parts one after the other, the workers tokenizing for all of them.

        Args:
            tasks: The parts.
            markers: Where they are marked.
            workers: Of ``tokenizing_processes``; none: this process tokenizes too.
            on_report: Called after each batch.
        """
        clock = _Clock()
        of_part = {task.input.number: task for task in tasks}
        batches = itertools.chain.from_iterable(self._batches(task.input, clock) for task in tasks)
        results = tokenize_batches(clock.timed(batches), self.tokenize, workers)
        for number, group in itertools.groupby(results, key=lambda pair: pair[0].part):
            task = of_part[number]
            with PartWriter(
                task.input, self.folder, self.tokenize.keys, quarantine=self.quarantine
            ) as writer:
                for batch, result in group:
                    on_report(_add(writer, batch, result, clock, 0.0 if workers else result.seconds))
            assert writer.done, "it was left without an error"
            markers.mark(task, writer.done)

    def _batches(self, part: Part, clock: "_Clock") -> Iterator[Batch]:
        return batches_of(
            part.number, read_blocks(part.ranges, self.tokenize.keys, on_read=clock.count_bytes)
        )


class _Clock:
    """How long the reading took, and how much it read, since it was last asked."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._bytes = 0

    def count_bytes(self, size: int) -> None:
        self._bytes += size

    def timed(self, items: Iterable[T]) -> Iterator[T]:
        iterator = iter(items)
        while True:
            began = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._seconds += time.perf_counter() - began
            yield item

    def take(self) -> tuple[float, int]:
        taken = self._seconds, self._bytes
        self._seconds, self._bytes = 0.0, 0
        return taken


def _add(
    writer: PartWriter, batch: Batch, result: TokenizedBatch, clock: _Clock, tokenizing: float
) -> BatchReport:
    began = time.perf_counter()
    bad = writer.add(batch, result)
    writing = time.perf_counter() - began
    reading, read_bytes = clock.take()
    return BatchReport(
        part=batch.part,
        read_bytes=read_bytes,
        text_bytes=sum(key.text_bytes for key in result.keys),
        tokens=sum(len(key.tokens) for key in result.keys),
        good=result.num_good,
        bad=bad,
        reading=reading,
        tokenizing=tokenizing,
        writing=writing,
    )
