"""How long the learning rate climbs linearly from 0 to its peak."""

from collections.abc import Callable
from typing import Annotated, Literal

from groundup.core.config import ByKind, config

StepsOfTokens = Callable[[float], float]
"""The steps, with a fraction of one, in which a run takes its first so many tokens."""


@config
class Steps:
    """A number of optimizer steps."""

    kind: Literal["steps"] = "steps"
    steps: int = 0

    def __post_init__(self) -> None:
        """Refuses a negative length."""
        if self.steps < 0:
            raise ValueError("steps must be 0 or more")

    def in_steps(self, horizon_steps: int, steps_of_tokens: StepsOfTokens) -> float:
        """Length of the warm-up in steps."""
        return self.steps


@config
class Fraction:
    """A fraction of the schedule's horizon."""

    kind: Literal["fraction"] = "fraction"
    fraction: float = 0.01

    def __post_init__(self) -> None:
        """Refuses what is no fraction."""
        if not 0 <= self.fraction < 1:
            raise ValueError("fraction must be at least 0 and less than 1")

    def in_steps(self, horizon_steps: int, steps_of_tokens: StepsOfTokens) -> float:
        """Length of the warm-up in steps."""
        return self.fraction * horizon_steps


@config
class Tokens:
    """A number of training tokens."""

    kind: Literal["tokens"] = "tokens"
    tokens: float = 0.0

    def __post_init__(self) -> None:
        """Refuses a negative length."""
        if self.tokens < 0:
            raise ValueError("tokens must be 0 or more")

    def in_steps(self, horizon_steps: int, steps_of_tokens: StepsOfTokens) -> float:
        """Length of the warm-up in steps."""
        return steps_of_tokens(self.tokens)


Warmup = Annotated[Steps | Fraction | Tokens, ByKind]
