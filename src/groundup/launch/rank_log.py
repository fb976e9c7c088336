"""Who says it: the log lines of ranks carry their number, and warnings of each reach the terminal."""

import contextlib
import logging
import os
import sys
import threading

from groundup.core.log import logger
from groundup.launch.heartbeat import LAUNCHER_VARIABLE


def speak_as(rank: int) -> None:
    """Puts ``rank 3:`` before this process's log lines; passes its warnings to our launcher's terminal too.

    Args:
        rank: Of this process; rank 0 speaks for all and changes nothing.
    """
    if rank == 0:
        return

    def number(record: logging.LogRecord) -> bool:
        record.msg = f"rank {rank}: {record.msg}"
        return True

    logger.addFilter(number)
    if LAUNCHER_VARIABLE in os.environ:
        handler = _ToTerminal(int(os.environ[LAUNCHER_VARIABLE]))
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
        logger.addHandler(handler)


class _ToTerminal(logging.Handler):
    """Warnings into the pipe to the launcher."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(logging.WARNING)
        self.descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record).replace("\n", " | ")
        with contextlib.suppress(BrokenPipeError):  # the launcher is gone, and this rank will be
            os.write(self.descriptor, line.encode() + b"\n")


class Warnings:
    """The launcher's side: shows what ranks warn of as it comes; what one has said others do not repeat.

    Give ``descriptor`` to the ranks, then ``listen``; ``close`` when they have ended.
    """

    def __init__(self) -> None:
        self._reading, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def listen(self) -> None:
        """From now on only the ranks can write."""
        os.close(self.descriptor)
        self._thread.start()

    def close(self) -> None:
        """Shows what is left; does not wait for what a rank has started and left behind."""
        self._thread.join(timeout=1.0)

    def _show(self) -> None:
        said = set()
        with os.fdopen(self._reading, errors="replace") as lines:
            for line in lines:
                _, _, words = line.partition(": ")
                if words not in said:
                    said.add(words)
                    sys.stderr.write(line)
                    sys.stderr.flush()
