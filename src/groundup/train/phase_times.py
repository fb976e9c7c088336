"""How long the phases of a step take."""

import contextlib
import time
from collections.abc import Iterator

import torch


class PhaseTimes:
    """Adds up the seconds of each phase; measures nothing without a device.

    Args:
        device: That computes. A GPU is waited for at both ends of a phase, which costs some speed.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures what is done while entered."""
        if self._device is None:
            yield
            return
        began = self._now()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - began

    def take(self) -> dict[str, float]:
        """Returns the seconds of each phase since the last call."""
        taken, self.seconds = self.seconds, {}
        return taken

    def _now(self) -> float:
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
