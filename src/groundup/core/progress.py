"""Progress with rate and ETA: a live line on a terminal, a line now and then elsewhere; none if ``quiet``."""

import logging
import time
from types import TracebackType

from groundup.core.live_line import LiveLine
from groundup.core.log import logger

_LINE_INTERVAL_SECONDS = 10.0


def human_seconds(seconds: float) -> str:
    """``75`` -> ``1m15s``."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def human_count(count: float) -> str:
    """``1234567`` -> ``1.23M``."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"


class Progress:
    """Counts one stage's work: ``with Progress("tokenize", total, "B") as progress: progress.add(n)``.

    Args:
        stage: What is being done.
        total: Expected amount, 0 when unknown (then there is no ETA).
        unit: Unit of the amount ("B", "documents", ...).
    """

    def __init__(self, stage: str, total: float, unit: str) -> None:
        self.stage = stage
        self.total = total
        self.unit = unit
        self.done = 0.0
        self.note = ""
        self._began = self._last_line = time.monotonic()
        self._live = LiveLine(self.line)

    def __enter__(self) -> "Progress":
        if logger.isEnabledFor(logging.INFO):
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)
        if error is None:
            elapsed = max(time.monotonic() - self._began, 1e-9)
            rate = human_count(self.done / elapsed)
            logger.info(
                "%s: %s%s in %s (%s%s/s)%s",
                self.stage,
                human_count(self.done),
                _spaced(self.unit),
                human_seconds(elapsed),
                rate,
                _spaced(self.unit),
                f"; {self.note}" if self.note else "",
            )

    def add(self, amount: float, note: str = "") -> None:
        """Counts ``amount`` more as done; ``note`` replaces the text after the figures."""
        self.done += amount
        if note:
            self.note = note
        now = time.monotonic()
        if not self._live.is_live and now - self._last_line >= _LINE_INTERVAL_SECONDS:
            self._last_line = now
            logger.info("%s", self.line())

    def line(self) -> str:
        """Returns the current state as one line."""
        elapsed = max(time.monotonic() - self._began, 1e-9)
        rate = self.done / elapsed
        parts = [f"{self.stage}: {human_count(self.done)}"]
        if self.total:
            parts[0] += f" of {human_count(self.total)}{_spaced(self.unit)} ({self.done / self.total:.0%})"
        else:
            parts[0] += _spaced(self.unit)
        parts.append(f"{human_count(rate)}{_spaced(self.unit)}/s")
        if self.total and rate > 0:
            parts.append(f"ETA {human_seconds((self.total - self.done) / rate)}")
        if self.note:
            parts.append(self.note)
        return " | ".join(parts)


def _spaced(unit: str) -> str:
    return f" {unit}" if len(unit) > 1 else unit
