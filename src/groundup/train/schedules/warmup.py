"""Length of the warm-up, in which the learning rate rises linearly from 0 to its peak."""

import dataclasses
from typing import Annotated, Literal

from groundup.core.config import ByKind, config
from groundup.core.config_class import NotNegative, NotNegativeFloat, Probability
from groundup.tokens.sampling.batch_ramp import BatchSizes

ScheduleUnit = Literal["steps", "samples"]
"""What a schedule counts."""


@dataclasses.dataclass(frozen=True)
class LengthIn:
    """Lengths in the unit that a schedule counts."""

    unit: ScheduleUnit
    batch_sizes: BatchSizes
    sequence_length: int

    def steps(self, steps: int) -> float:
        """Length of the first so many steps."""
        return steps if self.unit == "steps" else self.batch_sizes.after(steps)

    def samples(self, samples: float) -> float:
        """Length of the first so many samples."""
        return self.batch_sizes.steps_to(samples) if self.unit == "steps" else samples

    def tokens(self, tokens: float) -> float:
        """Length of the first so many tokens."""
        return self.samples(tokens / self.sequence_length)


@config
class Steps:
    """A number of optimizer steps.

    Attributes:
        steps: Optimizer steps until the peak; 0 for no warm-up.
    """

    kind: Literal["steps"] = "steps"
    steps: NotNegative = 0

    def length(self, horizon: float, unit: LengthIn) -> float:
        """Length of the warm-up."""
        return unit.steps(self.steps)


@config
class Fraction:
    """A fraction of the schedule's horizon.

    Attributes:
        fraction: Share of the schedule's horizon until the peak.
    """

    kind: Literal["fraction"] = "fraction"
    fraction: Probability = 0.01

    def length(self, horizon: float, unit: LengthIn) -> float:
        """Length of the warm-up."""
        return self.fraction * horizon


@config
class Tokens:
    """A number of training tokens.

    Attributes:
        tokens: Training tokens until the peak.
    """

    kind: Literal["tokens"] = "tokens"
    tokens: NotNegativeFloat = 0.0

    def length(self, horizon: float, unit: LengthIn) -> float:
        """Length of the warm-up."""
        return unit.tokens(self.tokens)


@config
class Samples:
    """A number of training samples.

    Attributes:
        samples: Training samples until the peak.
    """

    kind: Literal["samples"] = "samples"
    samples: NotNegative = 0

    def length(self, horizon: float, unit: LengthIn) -> float:
        """Length of the warm-up."""
        return unit.samples(self.samples)


Warmup = Annotated[Steps | Fraction | Tokens | Samples, ByKind]
