"""Ctrl-C and SIGTERM: the step in hand is finished and saved; a second Ctrl-C ends at once."""

import signal
from types import FrameType

from groundup.core.log import logger


class Interruption:
    """While entered, notes the first SIGINT or SIGTERM instead of dying of it."""

    requested = False

    def __enter__(self) -> "Interruption":
        """Takes over the two signals."""
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in self._before:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Gives them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        logger.info("%s: saving after this step; again to stop at once", signal.Signals(number).name)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
