"""A linear decay from the peak to a fraction of it."""

from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import Ratio


@config
class Linear:
    """A straight line from the peak to the last learning rate.

    Attributes:
        min_ratio: The last learning rate over the peak.
    """

    kind: Literal["linear"] = "linear"
    min_ratio: Ratio = 0.0

    def after_warmup(self, progress: float) -> float:
        """Learning rate over its peak, at ``progress`` in [0, 1] between warm-up and horizon."""
        return 1 - (1 - self.min_ratio) * progress
