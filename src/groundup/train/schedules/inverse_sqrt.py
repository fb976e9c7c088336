"""A decay by the inverse square root of the position (Vaswani et al. 2017, arXiv:1706.03762)."""

import math
from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import Ratio


@config
class InverseSqrt:
    """The root of the warm-up's length over the position.

    Attributes:
        min_ratio: The lowest learning rate over the peak, and the one after the horizon.
    """

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    min_ratio: Ratio = 0.0

    def at(self, position: float, warmup: float) -> float:
        """Learning rate over its peak up to the horizon: the root of the warm-up over the position."""
        return max(self.min_ratio, math.sqrt(max(warmup, 1)) / math.sqrt(max(position, 1)))
