"""The log-probability of each target, with gradients, without ever holding full fp32 logits.

For losses that weigh tokens or sequences by what is known only once all of them are scored: preferences,
rewards. Where the weights are known before, ``linear_cross_entropy`` is quicker.

Shapes: M tokens, D model, V padded vocabulary, C tokens of a chunk.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

from groundup.train.loss import CPU_LOGITS, IGNORE, ROWS, in_dtype_of_products


def token_log_probs(
    hidden_MD: Tensor,
    head_VD: Tensor,
    targets_M: Tensor,
    *,
    vocab_size: int,
    group: ProcessGroup | None = None,
    vocab_begin: int = 0,
) -> Tensor:
    """Returns log softmax(hidden head^T)[target] of each token, [M] in fp32.

    Logits are computed chunk by chunk, and again in the backward pass, which is given the gradient of each
    token. For another temperature, divide the hidden states by it.

    Args:
        hidden_MD: Final hidden states [M, D].
        head_VD: Weight of the output head [V, D], V >= vocab_size; ids from ``vocab_size`` on are padding.
        targets_M: Target ids [M]; ``IGNORE`` gets 0 and no gradient.
        vocab_size: True vocabulary, of all ranks together.
        group: Ranks that share the head's rows, as for ``linear_cross_entropy``: each gets all
            log-probabilities, the gradient of its rows, and a term of the hidden states' gradient, to be
            summed over the group. They exchange three numbers a token, and nothing in the backward pass.
        vocab_begin: Id of the first row of ``head_VD``.
    """
    with in_dtype_of_products(hidden_MD) as dtype:
        log_probs_M: Tensor = _TokenLogProbs.apply(
            hidden_MD, head_VD, targets_M, max(0, vocab_size - vocab_begin), dtype, group, vocab_begin
        )
    return log_probs_M


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_MD: Tensor,
        head_VD: Tensor,
        targets_M: Tensor,
        num_ids: int,
        dtype: torch.dtype,
        group: ProcessGroup | None,
        vocab_begin: int,
    ) -> Tensor:
        rows = ROWS
        if hidden_MD.device.type == "cpu":
            rows = min(ROWS, max(32, CPU_LOGITS // len(head_VD)))
        head = head_VD.to(dtype)
        own_M = targets_M - vocab_begin
        here_M = (targets_M != IGNORE) & (own_M >= 0) & (own_M < min(num_ids, len(head)))
        own_M = own_M.where(here_M, 0)
        totals, targets = [], []
        for rows_CD, own_C in zip(hidden_MD.split(rows), own_M.split(rows), strict=True):
            logits_CV = _logits(rows_CD.to(dtype), head, num_ids)
            totals.append(logits_CV.logsumexp(1))
            targets.append(logits_CV.gather(1, own_C.unsqueeze(1)).squeeze(1))
        target_M = torch.cat(targets).where(here_M, 0.0)
        total_M = torch.cat(totals)
        if group is not None:
            total_M, target_M = _over_group(total_M, target_M, group)
        ctx.save_for_backward(hidden_MD, head_VD, own_M, here_M, targets_M != IGNORE, total_M)
        ctx.num_ids, ctx.dtype, ctx.rows = num_ids, dtype, rows
        return (target_M - total_M).where(targets_M != IGNORE, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_M: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MD, head_VD, own_M, here_M, valid_M, total_M = ctx.saved_tensors
        head = head_VD.to(ctx.dtype)
        weight_M = gradient_M.to(total_M.dtype).where(valid_M, 0.0)
        hidden_gradients: list[Tensor] = []
        head_gradient: Tensor | None = None
        for begin in range(0, len(hidden_MD), ctx.rows):
            chunk = slice(begin, begin + ctx.rows)
            rows_CD, weight_C1 = hidden_MD[chunk].to(ctx.dtype), weight_M[chunk].unsqueeze(1)
            grad_CV = _logits(rows_CD, head, ctx.num_ids)
            grad_CV.sub_(total_M[chunk].unsqueeze(1)).exp_().mul_(-weight_C1)
            grad_CV.scatter_add_(1, own_M[chunk].unsqueeze(1), weight_C1.where(here_M[chunk, None], 0.0))
            gradient_CV = grad_CV.to(ctx.dtype)
            if ctx.needs_input_grad[0]:
                hidden_gradients.append(gradient_CV @ head)
            if ctx.needs_input_grad[1]:
                part_VD = (gradient_CV.T @ rows_CD).to(head_VD.dtype)
                head_gradient = part_VD if head_gradient is None else head_gradient.add_(part_VD)
        hidden_gradient = torch.cat(hidden_gradients).to(hidden_MD.dtype) if hidden_gradients else None
        return hidden_gradient, head_gradient, *(None,) * 5


def _logits(rows_CD: Tensor, head: Tensor, num_ids: int) -> Tensor:
    """Returns logits in fp32 [C, V], -inf for padding."""
    logits_CV = rows_CD @ head.T
    logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
    logits_CV[:, num_ids:] = -torch.inf
    return logits_CV


def _over_group(total_M: Tensor, target_M: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Combines the normalisers of each rank's part of the vocabulary, and finds the rank with the target."""
    max_M = total_M.clone()
    all_reduce(max_M, ReduceOp.MAX, group=group)
    sums_2M = torch.stack(((total_M - max_M).exp(), target_M))
    all_reduce(sums_2M, group=group)
    return sums_2M[0].log() + max_M, sums_2M[1]
