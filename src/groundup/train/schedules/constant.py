"""A constant learning rate."""

from typing import Literal

from groundup.core.config import config


@config
class Constant:
    """Stays at the peak after the warm-up."""

    kind: Literal["constant"] = "constant"

    def after_warmup(self, progress: float) -> float:
        """Learning rate over its peak: 1."""
        return 1.0
