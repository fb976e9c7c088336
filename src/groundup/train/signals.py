"""Ctrl-C and SIGTERM: the present step is finished and saved; a second Ctrl-C ends the process at once."""

import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from groundup.core.errors import GroundupError
from groundup.core.log import logger

_UNFINISHED = ".*.tmp"


class Interrupted(GroundupError):
    """The run was asked to stop by a signal, and has saved its state."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__(
            f"stopped after step {step}, which is saved", fix="The same command continues from there."
        )
        self.exit_code = 128 + number


class StopSignals:
    """Records the first SIGINT or SIGTERM within its block, instead of ending the process.

    A SIGINT after it ends the process at once, whatever native code is running: a thread waits for it, and
    removes unfinished files of the run.
    """

    requested = False
    number = int(signal.SIGTERM)
    """Number of the signal; SIGTERM where only another rank received it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._descriptors: tuple[int, ...] = ()

    def __enter__(self) -> "StopSignals":
        """Installs the handlers."""
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in self._before:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Restores the handlers from before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._descriptors:
            signal.set_wakeup_fd(-1)
            os.close(self._descriptors[1])  # ends the thread, which closes the other

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:  # the thread knows
            return
        self.requested, self.number = True, number
        logger.info("%s: saving after this step; Ctrl-C to stop at once", signal.Signals(number).name)
        self._descriptors = (reader, writer) = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._wait, args=(reader,), daemon=True).start()

    def _wait(self, reader: int) -> None:
        """Ends the process at the next SIGINT; the number of each signal comes through the pipe."""
        with open(reader, "rb", buffering=0) as numbers:  # a descriptor
            while received := numbers.read(1):
                if received[0] == signal.SIGINT:
                    remove_unfinished(self._run_dir)
                    sys.stderr.write(
                        "groundup: stopped at once; the newest checkpoint is the one to go on from\n"
                    )
                    sys.stderr.flush()
                    os._exit(128 + signal.SIGINT)


def remove_unfinished(run_dir: Path) -> None:
    """Removes unfinished files of a run that has ended."""
    for path in [*run_dir.glob(_UNFINISHED), *run_dir.glob(f"*/{_UNFINISHED}")]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
