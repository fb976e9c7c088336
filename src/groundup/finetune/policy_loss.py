"""The loss of GRPO: groups of completions are compared with each other, and the better ones made likelier.

Shao et al. 2024, arXiv:2402.03300; without division by standard deviation and length: Liu et al. 2025 (Dr.
GRPO), arXiv:2503.20783; by all tokens, and with clipping that differs upward: Yu et al. 2025 (DAPO),
arXiv:2503.14476. Schulman 2020 has the estimator k3 of the KL divergence, DeepSeek-AI 2025, arXiv:2512.02556,
its unbiased gradient.

Shapes: S completions, M tokens.
"""

import dataclasses
from typing import Literal

import torch
from torch import Tensor

ScaleRewards = Literal["group", "batch", "none"]
"""Of which rewards' standard deviation advantages are divided by."""

Normalisation = Literal["grpo", "dr_grpo", "dapo"]
"""What the loss is the mean of: completions, each the mean of its tokens; tokens, as if all completions had
the greatest length; all tokens. The names and meanings are TRL's."""

_EPSILON = 1e-4  # TRL's


def group_advantages(rewards_S: Tensor, group_size: int, scale: ScaleRewards) -> Tensor:
    """Returns how much better each completion is than the mean of its group [S].

    Args:
        rewards_S: Of the completions, groups one behind the other; NaN where there is none: such a
            completion counts for nothing, and its advantage is 0.
        group_size: Completions of one prompt.
        scale: What to divide by.
    """
    rewards_PG = rewards_S.double().view(-1, group_size)
    advantages_PG = rewards_PG - rewards_PG.nanmean(1, keepdim=True)
    if scale == "group":
        advantages_PG = advantages_PG / (deviation(rewards_PG) + _EPSILON)
    elif scale == "batch":
        advantages_PG = advantages_PG / (deviation(rewards_PG.view(1, -1)) + _EPSILON)
    return advantages_PG.nan_to_num(nan=0.0).view(-1).float()


def deviation(rewards_PG: Tensor) -> Tensor:
    """Standard deviation of each row without its NaNs, of the population that it is a sample of [P, 1]."""
    count_P1 = rewards_PG.isfinite().sum(1, keepdim=True)
    squares_PG = (rewards_PG - rewards_PG.nanmean(1, keepdim=True)) ** 2
    return (squares_PG.nansum(1, keepdim=True) / (count_P1 - 1).clamp_min(1)).sqrt()


def token_weights(
    lengths_S: Tensor, normalisation: Normalisation, *, max_new_tokens: int, mean_length: float
) -> Tensor:
    """Returns the weight of each token of a completion, in a sum that is divided by the completions [S].

    Args:
        lengths_S: Tokens of the completions.
        normalisation: What the loss is the mean of.
        max_new_tokens: The greatest length of a completion.
        mean_length: Tokens of a completion of the step, on all ranks.
    """
    if normalisation == "grpo":
        return 1.0 / lengths_S.clamp_min(1)
    length = max_new_tokens if normalisation == "dr_grpo" else mean_length
    return torch.full(lengths_S.shape, 1.0 / length, device=lengths_S.device)


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """Weighted sums over the tokens of a micro-batch; fp32 scalars.

    Attributes:
        loss: With gradients.
        kl: Of the estimates of the divergence from the reference; 0 without one.
        clipped: Of tokens whose ratio is clipped.
    """

    loss: Tensor
    kl: Tensor
    clipped: Tensor


def policy_loss(
    log_probs_M: Tensor,
    *,
    old_M: Tensor | None,
    reference_M: Tensor | None,
    advantages_M: Tensor,
    weights_M: Tensor,
    clip_low: float,
    clip_high: float,
    beta: float,
    weighted_kl: bool,
) -> PolicyLoss:
    """Returns the clipped loss summed over tokens.

    Args:
        log_probs_M: Of the completions' tokens, with gradients.
        old_M: Those of the weights that drew them; None where these are the present ones.
        reference_M: Those of the reference; None where there is none.
        advantages_M: Of each token's completion.
        weights_M: Of each token in the sums.
        clip_low: Below 1 - this, a ratio of probabilities has no more effect on a bad completion.
        clip_high: Above 1 + this, on a good one.
        beta: Weight of the divergence from the reference.
        weighted_kl: Multiply its estimate by the ratio, which makes its gradient that of the divergence.
    """
    old_M = log_probs_M.detach() if old_M is None else old_M
    ratio_M = (log_probs_M - old_M).exp()
    bounded_M = ratio_M.clamp(1 - clip_low, 1 + clip_high)
    loss_M = -torch.min(ratio_M * advantages_M, bounded_M * advantages_M)
    too_high_M = (advantages_M > 0) & (ratio_M > 1 + clip_high)
    clipped_M = too_high_M | ((advantages_M < 0) & (ratio_M < 1 - clip_low))
    kl = torch.zeros((), device=log_probs_M.device)
    if reference_M is not None:
        difference_M = reference_M - log_probs_M
        kl_M = difference_M.exp() - difference_M - 1
        if weighted_kl:
            kl_M = kl_M * ratio_M
        loss_M = loss_M + beta * kl_M
        kl = (kl_M.detach() * weights_M).sum()
    return PolicyLoss(loss=(loss_M * weights_M).sum(), kl=kl, clipped=(clipped_M * weights_M).sum())
