"""Rows of tokens through a model, on one process or over ranks, to the log-probabilities of their targets.

Shapes: B rows, T tokens of the longest, M scored tokens, C of a chunk, R banned, D model, V vocabulary of a
rank, P ranks that share it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from groundup.models.masks import BranchMask, CausalMask
from groundup.parallel.parallel_model import HeadLogits, ParallelModel, head_logits
from groundup.parallel.pipeline_parallel import Inputs

_LOGITS_BYTES = 64 << 20
"""Most memory that the fp32 logits of a chunk of tokens take."""

Ids = npt.NDArray[np.int64]

Found = list[tuple[int, dict[str, Any]]]
"""Number of each request, with what ``Score`` holds of each of its tokens."""


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A context with its continuations, of which none needs its last token as input."""

    ids: Ids
    positions: Ids
    branches: Ids
    columns: Ids  # where in the row each target is predicted
    targets: Ids
    requests: list[int]
    lengths: list[int]  # targets of each request


def score_rows(
    model: ParallelModel, vocab_size: int, batches: Sequence[Sequence[Row]], banned_R: Tensor
) -> list[Found]:
    """Returns what was found of each micro-batch; empty on ranks that have no head.

    Args:
        model: In evaluation mode.
        vocab_size: Its true vocabulary.
        batches: The longest row of each is its last.
        banned_R: Ids.
    """
    found: list[Found] = [[] for _ in batches]

    def finish(part: nn.Module, hidden_BTD: Tensor, number: int) -> None:
        found[number] = _found(part, vocab_size, batches[number], hidden_BTD, banned_R)

    model.run([_inputs(batch, model) for batch in batches], finish)
    return found


def _inputs(batch: Sequence[Row], model: ParallelModel) -> Inputs:
    divisor = model.tokens_divisor
    width = -(-len(batch[-1].ids) // divisor) * divisor
    values = np.zeros((3, len(batch), width), dtype=np.int64)  # causal: padding behind cannot matter
    for number, row in enumerate(batch):
        values[:, number, : len(row.ids)] = row.ids, row.positions, row.branches
    tokens_BT, positions_BT, branches_BT = torch.from_numpy(values).to(model.device)
    inputs: Inputs = {"tokens_BT": tokens_BT, "positions_BT": positions_BT}
    if any(len(row.requests) > 1 for row in batch):
        inputs["mask"] = BranchMask(branches_BT)
    elif model.shares_sequences:
        inputs["mask"] = CausalMask()
    return inputs


def _found(
    part: nn.Module, vocab_size: int, batch: Sequence[Row], hidden_BTD: Tensor, banned_R: Tensor
) -> Found:
    device, width = hidden_BTD.device, hidden_BTD.shape[1]
    flat_M = np.concatenate([number * width + row.columns for number, row in enumerate(batch)])
    hidden_MD = hidden_BTD.flatten(0, 1)[torch.from_numpy(flat_M).to(device)]
    targets_M = torch.from_numpy(np.concatenate([row.targets for row in batch])).to(device)
    chunk = max(1, _LOGITS_BYTES // (4 * vocab_size))
    parts = [
        _choices(head_logits(part, hidden_CD, vocab_size), targets_C, banned_R)
        for hidden_CD, targets_C in zip(hidden_MD.split(chunk), targets_M.split(chunk), strict=True)
    ]
    columns = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
    found = []
    begin = 0
    for row in batch:
        for number, length in zip(row.requests, row.lengths, strict=True):
            cut = slice(begin, begin + length)
            found.append((number, {name: column[cut] for name, column in columns.items()}))
            begin += length
    return found


def _choices(logits: HeadLogits, targets_C: Tensor, banned_R: Tensor) -> dict[str, Tensor]:
    """Returns what ``Score`` holds of each token, the same on all ranks that share the vocabulary."""
    logits_CV, first_id = logits.values_CV, logits.first_id
    if logits_CV.shape[1] == 0:
        logits_CV = logits_CV.new_full((len(logits_CV), 1), -torch.inf)
    size = logits_CV.shape[1]
    own_C = targets_C - first_id
    is_here_C = (own_C >= 0) & (own_C < size)
    chosen_C = logits_CV.gather(1, own_C.where(is_here_C, 0).unsqueeze(1)).squeeze(1)
    total_C = logits_CV.logsumexp(-1)
    best_C, choices_C = logits_CV.max(-1)
    allowed_best_C, allowed_C = best_C, choices_C
    if len(banned_R):
        own_R = banned_R - first_id
        own_R = own_R[(own_R >= 0) & (own_R < size)]
        allowed_best_C, allowed_C = logits_CV.index_fill_(1, own_R, -torch.inf).max(-1)
    chosen_C = chosen_C.double().where(is_here_C, -torch.inf)
    if logits.group is not None:
        chosen_PC, total_PC, best_PC, choices_PC, allowed_best_PC, allowed_PC = logits.of_all_ranks(
            chosen_C, total_C, best_C, choices_C + first_id, allowed_best_C, allowed_C + first_id
        )
        chosen_C, total_C = chosen_PC.amax(0), total_PC.logsumexp(0)
        choices_C, allowed_C = _at_best(choices_PC, best_PC), _at_best(allowed_PC, allowed_best_PC)
    return {
        "logprobs": chosen_C - total_C.double(),
        "choices": choices_C,
        "greedy": choices_C == targets_C,
        "allowed": allowed_C == targets_C,
    }


def _at_best(ids_PC: Tensor, best_PC: Tensor) -> Tensor:
    """Returns the id of the rank whose best logit is the highest."""
    return ids_PC.gather(0, best_PC.argmax(0, keepdim=True)).squeeze(0).long()
