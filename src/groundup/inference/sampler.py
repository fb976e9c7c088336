"""Draws the next token.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Annotated

import pydantic
import torch
from torch import Tensor

from groundup.core.config import config


@config
class Sampling:
    """Settings of the draw of the next token. The filters apply in the order of the attributes.

    Attributes:
        temperature: Logits are divided by it; 0 always takes the most probable token.
        top_k: Keeps the k most probable tokens, and ties with the last of them; 0 keeps all.
        top_p: Keeps the fewest most probable tokens whose probabilities reach this sum, the one that
            crosses it included (Holtzman et al. 2020, arXiv:1904.09751); 0 or 1 keeps all.
    """

    temperature: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, pydantic.Field(ge=0)] = 0
    top_p: Annotated[float, pydantic.Field(ge=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        """Refuses filters that would have no effect."""
        if self.temperature == 0 and (self.top_k or 0 < self.top_p < 1):
            raise ValueError("top_k and top_p have no effect at temperature 0: leave them out or raise it")


def sample(logits_BV: Tensor, sampling: Sampling, generators: Sequence[torch.Generator]) -> Tensor:
    """Draws one token id for each row; int64 [B].

    Args:
        logits_BV: Over the true vocabulary: padded ids are the caller's to cut off.
        sampling: How to draw.
        generators: One a row, on the CPU, so that a row's draws depend neither on its neighbours nor on
            the device; each gives one number a call, none when the temperature is 0.
    """
    if sampling.temperature == 0:
        return logits_BV.argmax(-1)
    logits_BV = filtered(logits_BV.float() / sampling.temperature, sampling)
    cumulative_BV = logits_BV.double().softmax(-1).cumsum(-1)
    draws = [1 - torch.rand((), generator=generator, dtype=torch.float64) for generator in generators]
    draws_B1 = torch.stack(draws).to(logits_BV.device).unsqueeze(1)  # in (0, 1]: never before the first kept
    return torch.searchsorted(cumulative_BV, draws_B1 * cumulative_BV[:, -1:]).squeeze(1)


def filtered(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Sets the logits of the tokens that ``top_k`` and ``top_p`` leave out to -inf."""
    if 0 < sampling.top_k < logits_BV.shape[-1]:
        least_B1 = logits_BV.topk(sampling.top_k).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, -torch.inf)
    if 0 < sampling.top_p < 1:
        falling_BV, order_BV = logits_BV.sort(descending=True, stable=True)
        probabilities_BV = falling_BV.softmax(-1)
        before_BV = probabilities_BV.cumsum(-1) - probabilities_BV
        dropped_BV = torch.empty_like(before_BV, dtype=torch.bool)
        dropped_BV.scatter_(1, order_BV, before_BV >= sampling.top_p)
        logits_BV = logits_BV.masked_fill(dropped_BV, -torch.inf)
    return logits_BV
