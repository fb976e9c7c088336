"""Attention of prompts to themselves, several at once, for a GPU: one kernel where each would need its own.

Shapes: M tokens of the prompts, P prompts, T tokens of the longest, N heads, K kv heads, H head dim.
"""

import torch
from torch import Tensor

from groundup.models.masks import CausalMask

_FILLED = 2
"""Prompts that are filled up to the longest make at most so many times their tokens."""


class PromptAttention:
    """Causal attention within prompts that stand one behind the other.

    Args:
        lengths: Tokens of each prompt.
        device: Where the model computes.
    """

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        ends_P1 = torch.tensor(lengths).cumsum(0).unsqueeze(1)
        lengths_P1 = torch.tensor(lengths).unsqueeze(1)
        at_T = torch.arange(max(lengths))
        # What fills a row up stands at its end, where no token of the prompt sees it.
        self._rows_PT = torch.minimum(ends_P1 - lengths_P1 + at_T, ends_P1 - 1).to(device)
        self._real_M = (at_T < lengths_P1).flatten().nonzero().flatten().to(device)

    def attend(self, q_1NMH: Tensor, k_1KMH: Tensor, v_1KMH: Tensor) -> Tensor:
        """Returns [M, N, H]."""
        q_PNTH, k_PKTH, v_PKTH = (
            x_1NMH[0][:, self._rows_PT].transpose(0, 1) for x_1NMH in (q_1NMH, k_1KMH, v_1KMH)
        )
        y_PNTH = CausalMask().attend(q_PNTH, k_PKTH, v_PKTH, dropout=0.0)
        return y_PNTH.transpose(1, 2).flatten(0, 1)[self._real_M]


def prompts_at_once(lengths: list[int]) -> list[list[int]]:
    """Cuts prompts, in their order, into groups of about one length; returns the lengths of each."""
    groups: list[list[int]] = []
    for length in lengths:
        group = [*groups[-1], length] if groups else [length]
        if groups and max(group) * len(group) <= _FILLED * sum(group):
            groups[-1] = group
        else:
            groups.append([length])
    return groups
