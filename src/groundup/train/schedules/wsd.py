"""Warm-up, stable, decay (Hu et al. 2024, MiniCPM, arXiv:2404.06395)."""

import math
from typing import Annotated, Literal

from annotated_types import Gt, Le

from groundup.core.config import config
from groundup.core.config_class import Ratio


@config
class Wsd:
    """A long stable phase and a decay at the end.

    Attributes:
        decay_fraction: Share of the steps after the warm-up in which the learning rate decays.
        min_ratio: Final learning rate over the peak.
        shape: ``linear``; ``sqrt``: 1 - sqrt(x) (Hägele et al. 2024, arXiv:2405.18392); ``cosine``; or
            ``exponential``: 2 * 0.5^x - 1, Megatron-LM's default.
    """

    kind: Literal["wsd"] = "wsd"
    decay_fraction: Annotated[float, Gt(0), Le(1)] = 0.2
    min_ratio: Ratio = 0.0
    shape: Literal["linear", "sqrt", "cosine", "exponential"] = "linear"

    def after_warmup(self, progress: float) -> float:
        """Learning rate over its peak, at ``progress`` in [0, 1] between warm-up and horizon."""
        decayed = max(0.0, (progress - (1 - self.decay_fraction)) / self.decay_fraction)
        return 1 - (1 - self.min_ratio) * self._fall(decayed)

    def _fall(self, decayed: float) -> float:
        match self.shape:
            case "sqrt":
                return math.sqrt(decayed)
            case "cosine":
                return 0.5 * (1 - math.cos(math.pi * decayed))
            case "exponential":
                return 2 - 2 * math.pow(0.5, decayed)
        return decayed
