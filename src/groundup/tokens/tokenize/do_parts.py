"""Doing the parts of a build: how fast it goes, what holds it up, and when it is hopeless."""

import collections
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from groundup.core.executor.run import run_tasks
from groundup.core.executor.tasks import AnyRunner, Markers, Task
from groundup.core.progress import Progress, human_count
from groundup.corpus.bad_records import SHOWN_OFFENDERS, BadRecordPolicy, BadRecords
from groundup.corpus.line_blocks import count_lines
from groundup.corpus.source_ranges import Part, SourceRange
from groundup.tokens.tokenize.join import COMMAND, shifted
from groundup.tokens.tokenize.tokenize_part import PartReport, TokenizePart


def do_parts(
    tasks: Sequence[Task[Part]],
    work: TokenizePart,
    markers: Markers,
    runner: AnyRunner,
    *,
    policy: BadRecordPolicy,
) -> None:
    """Does parts, with progress, and stops early where too many records are bad.

    Args:
        tasks: The parts.
        work: What is done to each.
        markers: Where they are marked.
        runner: Who does them.
        policy: What to do with bad records.

    Raises:
        DataError: As the policy decides; or a source cannot be read.
        MachineError: A worker was killed, or Ray is missing.
    """
    judge = _Judge([task.input for task in tasks], policy)
    with _Throughput(sum(task.input.size_bytes for task in tasks)) as throughput:

        def report(report: PartReport) -> None:
            throughput.add(report)
            judge.add(report)

        run_tasks(tasks, work, markers, runner, on_report=report)


class _Seconds(NamedTuple):
    reading: float
    tokenizing: float
    writing: float


class _Throughput:
    """Adds up reports and shows them: text and tokens a second, and the shares of the time.

    Nothing is shown before the first report: a live line has a thread, and processes must not be forked
    from one that has threads.

    Args:
        total_bytes: To be taken from disk.
    """

    def __init__(self, total_bytes: int) -> None:
        self._progress = Progress("tokenize", total_bytes, "B")
        self._is_shown = False
        self._began = time.perf_counter()
        self._text_bytes = 0
        self._tokens = 0
        self._seconds = _Seconds(0.0, 0.0, 0.0)

    def __enter__(self) -> "_Throughput":
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._progress.__exit__(kind, error, trace)

    def add(self, report: PartReport) -> None:
        """Counts a report."""
        self._text_bytes += report.text_bytes
        self._tokens += report.tokens
        spent = _Seconds(report.reading, report.tokenizing, report.writing)
        self._seconds = _Seconds(*(sum(pair) for pair in zip(self._seconds, spent, strict=True)))
        if not self._is_shown:
            self._progress.__enter__()
            self._is_shown = True
        self._progress.add(report.read_bytes, self.note())

    def note(self) -> str:
        """The present figures."""
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        return (
            f"{self._text_bytes / elapsed / 1e6:.1f} MB of text/s,"
            f" {human_count(self._tokens / elapsed)} tokens/s; time: {self._shares()}"
        )

    def _shares(self) -> str:
        seconds = self._seconds
        total = max(sum(seconds), 1e-9)
        ranked = sorted(seconds._asdict().items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {share / total:.0%}" for name, share in ranked)


class _Judge:
    """Stops a build early, by the records so far. Under ``quarantine`` it lets them all be gathered."""

    def __init__(self, parts: Sequence[Part], policy: BadRecordPolicy) -> None:
        self._parts = {part.number: part for part in parts}
        self._policy = policy
        self._good = 0
        self._by_reason: collections.Counter[str] = collections.Counter()
        self._first: list[tuple[int, str, str, str]] = []

    def add(self, report: PartReport) -> None:
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
        return shifted(where, _lines_before(part.ranges[0]) if part.is_range_of_lines else 0)


def _lines_before(source: SourceRange) -> int:
    """Lines of a plain file that begin before a range of it; reads the file up to there."""
    return 1 + count_lines(SourceRange(source.file, source.begin), lambda size: None)
