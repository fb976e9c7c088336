"""How fast a build goes, and what holds it up."""

import time
from types import TracebackType
from typing import NamedTuple

from groundup.core.progress import Progress, human_count
from groundup.tokens.tokenize.part_build import BatchReport


class _Seconds(NamedTuple):
    reading: float
    tokenizing: float
    writing: float


class Throughput:
    """Adds up reports and shows them: text and tokens a second, and the shares of the time.

    Nothing is shown before the first report: a live line has a thread, and processes must not be forked
    from one that has threads.

    Args:
        total_bytes: To be taken from disk.
        waits: Whether other processes tokenize for this one: then the time that is neither reading nor
            writing went by waiting for them.
    """

    def __init__(self, total_bytes: int, *, waits: bool) -> None:
        self._progress = Progress("tokenize", total_bytes, "B")
        self._is_shown = False
        self._waits = waits
        self._began = time.perf_counter()
        self._text_bytes = 0
        self._tokens = 0
        self._seconds = _Seconds(0.0, 0.0, 0.0)

    def __enter__(self) -> "Throughput":
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._progress.__exit__(kind, error, trace)

    def add(self, report: BatchReport) -> None:
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
            f" {human_count(self._tokens / elapsed)} tokens/s; time: {self._shares(elapsed)}"
        )

    def _shares(self, elapsed: float) -> str:
        seconds = self._seconds
        if self._waits:
            seconds = seconds._replace(tokenizing=max(0.0, elapsed - seconds.reading - seconds.writing))
        total = max(sum(seconds), 1e-9)
        ranked = sorted(seconds._asdict().items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {share / total:.0%}" for name, share in ranked)
