"""Ctrl-C and SIGTERM: the step in hand is finished and saved; a second Ctrl-C ends at once."""

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
    """The run was asked to stop, and its state is saved.

    Args:
        step: The last one.
        number: Of the signal.
    """

    def __init__(self, step: int, number: int) -> None:
        super().__init__(
            f"stopped after step {step}, which is saved", fix="The same command continues from there."
        )
        self.exit_code = 128 + number


class StopSignals:
    """While entered, notes the first SIGINT or SIGTERM instead of dying of it.

    A SIGINT after it ends the process at once, whatever native code is running: a thread waits for it, and
    removes the files of the run that are half written.

    Args:
        run_dir: Folder of the run.
    """

    requested = False
    number = int(signal.SIGTERM)
    """The signal; that of a launcher, where another rank was told."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._descriptors: tuple[int, ...] = ()

    def __enter__(self) -> "StopSignals":
        """Takes over the two signals."""
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in self._before:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Gives them back."""
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
        """Ends the process by the next SIGINT: each signal's number comes through the pipe."""
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
    """Removes what is half written of a run that nobody goes on with."""
    for path in [*run_dir.glob(_UNFINISHED), *run_dir.glob(f"*/{_UNFINISHED}")]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
