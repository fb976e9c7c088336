"""Prefixes log lines with the rank, and forwards warnings of all ranks to the launcher's terminal."""

import contextlib
import logging
import os
import sys
import threading

from groundup.core.log import logger
from groundup.launch.env import launcher_pipe


def prefix_log_lines(rank: int) -> None:
    """Puts ``rank 3:`` before this process's log lines, and forwards its warnings to our launcher.

    Args:
        rank: Of this process; for rank 0, which logs for all, nothing changes.
    """
    if rank == 0:
        return

    def number(record: logging.LogRecord) -> bool:
        record.msg = f"rank {rank}: {record.msg}"
        return True

    logger.addFilter(number)
    descriptor = launcher_pipe()
    if descriptor is not None:
        handler = _ToTerminal(descriptor)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
        logger.addHandler(handler)


class _ToTerminal(logging.Handler):
    """WarningRelay into the pipe to the launcher."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(logging.WARNING)
        self.descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record).replace("\n", " | ")
        with contextlib.suppress(BrokenPipeError):  # the launcher is gone, and this rank will be
            os.write(self.descriptor, line.encode() + b"\n")


class WarningRelay:
    """The launcher's end: prints the warnings of ranks as they come, each only once however many repeat it.

    Give ``descriptor`` to the ranks, then call ``listen``, and ``close`` when they have ended.
    """

    def __init__(self) -> None:
        self._reading, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._print, daemon=True)

    def listen(self) -> None:
        """Prints from now on; from here only the ranks can write."""
        os.close(self.descriptor)
        self._thread.start()

    def close(self) -> None:
        """Prints what is left, without waiting for processes that a rank has left behind."""
        self._thread.join(timeout=1.0)

    def _print(self) -> None:
        printed = set()
        with os.fdopen(self._reading, errors="replace") as lines:
            for line in lines:
                _, _, message = line.partition(": ")
                if message not in printed:
                    printed.add(message)
                    sys.stderr.write(line)
                    sys.stderr.flush()
