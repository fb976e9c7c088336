"""A cosine decay from the peak to a fraction of it (Loshchilov and Hutter 2016, arXiv:1608.03983)."""

import math
from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import Ratio


@config
class Cosine:
    """Half a cosine, from the peak to the last learning rate.

    Attributes:
        min_ratio: The last learning rate over the peak.
    """

    kind: Literal["cosine"] = "cosine"
    min_ratio: Ratio = 0.1

    def after_warmup(self, progress: float) -> float:
        """Learning rate over its peak, at ``progress`` in [0, 1] between warm-up and horizon."""
        return self.min_ratio + (1 - self.min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
