"""Draws the next token.

Shapes: B rows, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import pydantic
import torch
from torch import Tensor

from groundup.core.config import config


@config
class Sampling:
    """Settings of the draw of the next token.

    The penalty applies first, the others in the order of the attributes.

    Attributes:
        temperature: Logits are divided by it; 0 always takes the most probable token.
        top_k: Keeps the k most probable tokens, and ties with the last of them; 0 keeps all.
        top_p: Keeps the fewest most probable tokens whose probabilities reach this sum, the one that
            crosses it included (Holtzman et al. 2020, arXiv:1904.09751); 0 or 1 keeps all.
        min_p: Keeps tokens with at least this share of the most probable one's probability (Nguyen et al.
            2024, arXiv:2407.01082).
        repetition_penalty: Logits of tokens that prompt or text contain are divided by it where positive,
            multiplied where negative (Keskar et al. 2019, arXiv:1909.05858); 1 changes none.
    """

    temperature: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, pydantic.Field(ge=0)] = 0
    top_p: Annotated[float, pydantic.Field(ge=0, le=1)] = 1.0
    min_p: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)] = 1.0

    def __post_init__(self) -> None:
        """Refuses filters that would have no effect."""
        if self.temperature == 0 and (self.top_k or 0 < self.top_p < 1 or self.min_p):
            raise ValueError(
                "top_k, top_p and min_p have no effect at temperature 0: leave them out or raise it"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """Natural logarithms of the model's probabilities at temperature 1, before any filter.

    Attributes:
        chosen: Of the token itself.
        top: The most probable ids with theirs, falling.
    """

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


_LEAST_TEMPERATURE = 1e-4
"""Below, quotients overflow, and the most probable token has all of the probability anyway."""


def sample_each(
    logits_BV: Tensor,
    samplings: Sequence[Sampling],
    generators: Sequence[torch.Generator],
    contexts: Sequence[Sequence[int]],
) -> list[int]:
    """Draws one token id for each row, each by its own settings; ``contexts`` are the tokens before."""
    ids = [0] * len(samplings)
    rows_of: dict[Sampling, list[int]] = {}
    for row, sampling in enumerate(samplings):
        rows_of.setdefault(sampling, []).append(row)
    for sampling, rows in rows_of.items():
        part_BV = logits_BV if len(rows_of) == 1 else logits_BV[rows]
        if sampling.repetition_penalty != 1:
            part_BV = penalised(part_BV, sampling.repetition_penalty, [contexts[row] for row in rows])
        drawn = sample(part_BV, sampling, [generators[row] for row in rows]).tolist()
        for row, number in zip(rows, drawn, strict=True):
            ids[row] = number
    return ids


def sample(logits_BV: Tensor, sampling: Sampling, generators: Sequence[torch.Generator]) -> Tensor:
    """Draws one token id for each row; int64 [B].

    Args:
        logits_BV: Over the true vocabulary: padded ids are the caller's to cut off.
        sampling: How to draw; its repetition penalty is the caller's to apply.
        generators: One a row, on the CPU, so that a row's draws depend neither on its neighbours nor on
            the device; each gives one number a call, none when the temperature is 0.
    """
    if sampling.temperature < _LEAST_TEMPERATURE:
        return most_probable(logits_BV)
    logits_BV = filtered(logits_BV.float() / sampling.temperature, sampling)
    cumulative_BV = logits_BV.double().softmax(-1).cumsum(-1)
    draws = [1 - torch.rand((), generator=generator, dtype=torch.float64) for generator in generators]
    draws_B1 = torch.stack(draws).to(logits_BV.device).unsqueeze(1)  # in (0, 1]: never before the first kept
    return torch.searchsorted(cumulative_BV, draws_B1 * cumulative_BV[:, -1:]).squeeze(1)


def most_probable(logits_BV: Tensor) -> Tensor:
    """Returns the ids of the largest logits; int64 [B]."""
    if logits_BV.device.type == "cpu":  # NumPy takes a tenth of the time
        return torch.from_numpy(logits_BV.float().numpy().argmax(-1))
    return logits_BV.argmax(-1)


def filtered(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Sets the logits of the tokens that ``top_k``, ``top_p`` and ``min_p`` leave out to -inf."""
    if 0 < sampling.top_k < logits_BV.shape[-1]:
        least_B1 = logits_BV.topk(sampling.top_k).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, -torch.inf)
    if 0 < sampling.top_p < 1:
        falling_BV, order_BV = logits_BV.sort(descending=True, stable=True)
        probabilities_BV = falling_BV.softmax(-1)
        before_BV = probabilities_BV.cumsum(-1) - probabilities_BV
        falling_dropped_BV = before_BV >= sampling.top_p
        falling_dropped_BV[:, 0] = False  # a top_p that is 0 in this precision
        dropped_BV = torch.empty_like(before_BV, dtype=torch.bool)
        dropped_BV.scatter_(1, order_BV, falling_dropped_BV)
        logits_BV = logits_BV.masked_fill(dropped_BV, -torch.inf)
    if sampling.min_p:
        probabilities_BV = logits_BV.softmax(-1)
        least_B1 = sampling.min_p * probabilities_BV.amax(-1, keepdim=True)
        logits_BV = logits_BV.masked_fill(probabilities_BV < least_B1, -torch.inf)
    return logits_BV


def without_followers(logits_BV: Tensor, rules: Sequence[tuple[int, tuple[int, int] | None]]) -> Tensor:
    """Makes an id next to impossible right after another: of each row its last id, and (other, id)."""
    if not any(rule and last == rule[0] for last, rule in rules):
        return logits_BV
    logits_BV = logits_BV.clone()
    for logits_V, (last, rule) in zip(logits_BV, rules, strict=True):
        if rule and last == rule[0]:
            logits_V[rule[1]] = -1e10  # as Megatron-LM; its log-probability stays finite
    return logits_BV


def penalised(logits_BV: Tensor, penalty: float, contexts: Sequence[Sequence[int]]) -> Tensor:
    """Makes the earlier tokens of each row less likely, by a penalty above 1."""
    logits_BV = logits_BV.clone()
    for logits_V, context in zip(logits_BV, contexts, strict=True):
        ids = torch.tensor(sorted(set(context)), device=logits_V.device)
        ids = ids[ids < len(logits_V)]  # a prompt may have ids that are never produced
        earlier = logits_V[ids]
        logits_V[ids] = torch.where(earlier > 0, earlier / penalty, earlier * penalty)
    return logits_BV


def logprobs_of(
    logits_BV: Tensor, ids: Sequence[int], wanted: Sequence[int | None]
) -> list[TokenLogprob | None]:
    """Returns log-probabilities of tokens and of the most probable ones, for rows that want some."""
    found: list[TokenLogprob | None] = [None] * len(ids)
    rows = [row for row, count in enumerate(wanted) if count is not None]
    if not rows:
        return found
    counts = [wanted[row] or 0 for row in rows]
    part_RV = logits_BV if len(rows) == len(ids) else logits_BV[rows]
    sums_R1 = part_RV.logsumexp(-1, keepdim=True).double()
    chosen_R1 = part_RV.gather(1, torch.tensor([[ids[row]] for row in rows], device=part_RV.device))
    values_RK, top_RK = part_RV.topk(min(max(counts), part_RV.shape[-1]))
    chosen = (chosen_R1.double() - sums_R1).squeeze(1).tolist()
    values, top = (values_RK.double() - sums_R1).tolist(), top_RK.tolist()
    for at, (row, count) in enumerate(zip(rows, counts, strict=True)):
        pairs = tuple(zip(top[at][:count], values[at][:count], strict=True))
        found[row] = TokenLogprob(chosen=chosen[at], top=pairs)
    return found
