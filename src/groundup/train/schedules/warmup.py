"""Length of the warm-up, in which the learning rate rises linearly from 0 to its peak."""

from collections.abc import Callable
from typing import Annotated, Literal

from groundup.core.config import ByKind, config
from groundup.core.config_class import NotNegative, NotNegativeFloat, Probability

StepsOfTokens = Callable[[float], float]
"""Returns the steps, fractions included, in which a run trains on its first so many tokens."""


@config
class Steps:
    """A number of optimizer steps."""

    kind: Literal["steps"] = "steps"
    steps: NotNegative = 0

    def in_steps(self, horizon_steps: int, steps_of_tokens: StepsOfTokens) -> float:
        """Length of the warm-up in steps."""
        return self.steps


@config
class Fraction:
    """A fraction of the schedule's horizon."""

    kind: Literal["fraction"] = "fraction"
    fraction: Probability = 0.01

    def in_steps(self, horizon_steps: int, steps_of_tokens: StepsOfTokens) -> float:
        """Length of the warm-up in steps."""
        return self.fraction * horizon_steps


@config
class Tokens:
    """A number of training tokens."""

    kind: Literal["tokens"] = "tokens"
    tokens: NotNegativeFloat = 0.0

    def in_steps(self, horizon_steps: int, steps_of_tokens: StepsOfTokens) -> float:
        """Length of the warm-up in steps."""
        return steps_of_tokens(self.tokens)


Warmup = Annotated[Steps | Fraction | Tokens, ByKind]
