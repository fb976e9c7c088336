"""An exponential moving average of the weights: often better than the weights of any one step.

Polyak and Juditsky 1992 (averaged iterates); for language models e.g. Kaddour 2022, arXiv:2209.14981, and
Sanyal et al. 2023, arXiv:2306.03241.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from groundup.checkpoint.logical_tensors import kept_parameters
from groundup.core.config import config
from groundup.core.config_class import Probability
from groundup.parallel.dtensor import local


@config
class EmaConfig:
    """Settings of the moving average of weights.

    Attributes:
        decay: Weight of the old average at each update; 0.999 averages over some 1,000 updates, 0 turns it
            off. The average takes 4 bytes a weight, sharded as the weights are.
    """

    decay: Probability = 0.0


class WeightAverage:
    """The moving average of a model's weights under any layout; it begins as a copy of the weights.

    After n updates it is decay^n w_0 + (1 - decay) sum over i = 1..n of decay^(n - i) w_i. Steps without an
    update of the weights do not count.

    Attributes:
        values: Parameter name -> average, fp32, sharded as the parameter is.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights: dict[str, Tensor] = {**kept_parameters(model)}
        self._decay = decay
        self.values = {name: weight.detach().float().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def begin(self) -> None:
        """Sets the average to the weights as they are now."""
        for name, weight in self._weights.items():
            local(self.values[name]).copy_(local(weight))

    @torch.no_grad()
    def update(self) -> None:
        """Adds the present weights to the average."""
        averages = [local(value) for value in self.values.values()]
        weights = [local(weight).to(torch.float32) for weight in self._weights.values()]
        torch._foreach_lerp_(averages, weights, 1 - self._decay)

    @contextlib.contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Swaps the average into the model within the block, and the weights back after it, bit by bit.

        Gathered weights must be resharded before and after it; see ``without_gathering``.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self._weights.items():
            ours, theirs = local(self.values[name]), local(weight)
            before = ours.clone()
            ours.copy_(theirs)
            theirs.copy_(before)
