"""Who does the parts of a build, and what is watched while they are done."""

import collections
from collections.abc import Sequence

from groundup.core.executor.run import run_tasks
from groundup.core.executor.tasks import Markers, ProcessRunner, RayRunner, Task
from groundup.corpus.bad_records import SHOWN_OFFENDERS, BadRecordPolicy, BadRecords
from groundup.corpus.blocks import lines_before
from groundup.tokens.tokenize.join import COMMAND, shifted
from groundup.tokens.tokenize.part_build import BatchReport, BuildPart
from groundup.tokens.tokenize.parts import Part
from groundup.tokens.tokenize.throughput import Throughput
from groundup.tokens.tokenize.workers import tokenizing_processes

PARTS_PER_WORKER = 4
"""With at least so many, each worker does parts of its own; with fewer, the last ones would keep few busy."""


def do_parts(
    tasks: Sequence[Task[Part]],
    work: BuildPart,
    markers: Markers,
    *,
    policy: BadRecordPolicy,
    num_workers: int,
    ray: RayRunner | None,
) -> None:
    """Does parts, with progress, and stops early where too many records are bad.

    Args:
        tasks: The parts.
        work: What is done to each.
        markers: Where they are marked.
        policy: What to do with bad records.
        num_workers: Processes; 0 for none besides this one.
        ray: Do them on a Ray cluster instead.

    Raises:
        DataError: As the policy decides; or a source cannot be read.
        MachineError: A worker was killed, or Ray is missing.
    """
    own_parts = ray is not None or (num_workers > 0 and len(tasks) >= PARTS_PER_WORKER * num_workers)
    total = sum(task.input.size_bytes for task in tasks)
    judge = _Judge([task.input for task in tasks], policy)
    throughput = Throughput(total, waits=num_workers > 0 and not own_parts)

    def report(batch: BatchReport) -> None:
        throughput.add(batch)
        judge.add(batch)

    if own_parts:
        runner = ray or ProcessRunner(workers=num_workers)
        with throughput:
            run_tasks(tasks, work, markers, runner, on_report=report)
    else:
        with tokenizing_processes(num_workers, work.tokenize) as workers, throughput:
            work.share(tasks, markers, workers, on_report=report)


class _Judge:
    """Stops a build early, by the records so far. Under ``quarantine`` it lets them all be gathered."""

    def __init__(self, parts: Sequence[Part], policy: BadRecordPolicy) -> None:
        self._parts = {part.number: part for part in parts}
        self._policy = policy
        self._good = 0
        self._by_reason: collections.Counter[str] = collections.Counter()
        self._first: list[tuple[int, str, str, str]] = []

    def add(self, report: BatchReport) -> None:
        """Counts a batch.

        Raises:
            DataError: There was a record with which the policy does not put up, or too many of many are bad.
        """
        self._good += report.good
        for where, reason, detail in report.bad:
            self._by_reason[reason] += 1
            if self._policy.is_fatal(reason):
                where = self._in_file(report.part, where)
                BadRecords(self._policy, command=COMMAND).add(where, reason, detail=detail)
            if len(self._first) < SHOWN_OFFENDERS:
                self._first.append((report.part, where, reason, detail))
        if not report.bad or self._policy.action == "quarantine":
            return
        so_far = BadRecords(self._policy, command=COMMAND)
        so_far.take(self._good, self._by_reason, ())
        if so_far.is_judged_early() and so_far.is_too_bad():
            so_far.take(0, {}, self._offenders())
            so_far.judge()

    def _offenders(self) -> list[tuple[str, str, str]]:
        return [(self._in_file(part, where), reason, detail) for part, where, reason, detail in self._first]

    def _in_file(self, number: int, where: str) -> str:
        """Where a bad record of a part is in its file: a range counts its lines from its beginning."""
        part = self._parts[number]
        return shifted(where, lines_before(part.ranges[0]) if part.is_range_of_lines else 0)
