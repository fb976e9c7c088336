"""The states of the generators that dropout draws from."""

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class RngStates:
    """Of this rank.

    Attributes:
        states: Name of a generator ("cpu", "cuda") -> its state, uint8.
    """

    states: dict[str, Tensor]

    @staticmethod
    def now() -> "RngStates":
        """As they are; waits for nothing."""
        states = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
        return RngStates(states)

    def restore(self) -> None:
        """Sets the generators back; those of devices that are not here are left out."""
        if "cpu" in self.states:
            torch.set_rng_state(self.states["cpu"])
        if "cuda" in self.states and torch.cuda.is_available():
            torch.cuda.set_rng_state(self.states["cuda"])
