"""Logging: everything that is not a result goes to stderr."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("groundup")


class _StderrHandler(logging.Handler):
    """Looks stderr up at each record, so that redirecting it works at any time."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")
        sys.stderr.flush()


class _FileHandler(logging.FileHandler):
    """Raises what goes wrong, as a full disk, where the standard one prints a traceback and goes on."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # it is called where the error is caught


def set_up(*, debug: bool = False) -> None:
    """Sends groundup's log records to stderr, one line each, with the time of day."""
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logger.propagate = False


@contextlib.contextmanager
def quiet(least: int = logging.WARNING) -> Iterator[None]:
    """While entered, only warnings are logged, or what is as severe as ``least``."""
    level = logger.level
    logger.setLevel(max(level, least))
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def also_to_file(path: Path) -> Iterator[None]:
    """While entered, appends the log records to a file too, with date and time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
