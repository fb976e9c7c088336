"""The language-modelling loss, without ever holding full fp32 logits.

Shapes: M tokens, D model, V padded vocabulary, C tokens of a chunk.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

from groundup.core.log import logger
from groundup.parallel.compile import why_not_compiled

IGNORE = -1
"""Target id of a position without a target."""

ROWS = 2048
"""Tokens whose logits are held at once in the compute dtype, which bounds the memory of the loss."""
GPU_LOGITS = 1 << 28
"""Logits that a GPU holds at once where these are more tokens: a gradient of the head is added less often."""
CPU_LOGITS = 1 << 21
"""Logits that a CPU turns into probabilities at once, so that they fit its caches."""


def linear_cross_entropy(
    hidden_MD: Tensor,
    head_VD: Tensor,
    targets_M: Tensor,
    *,
    vocab_size: int,
    group: ProcessGroup | None = None,
    vocab_begin: int = 0,
) -> Tensor:
    """Returns the sum over tokens of -log softmax(hidden head^T)[target], a fp32 scalar.

    A sum that is divided by the global number of targets makes accumulation, data parallelism and padding
    agree exactly. Ids from ``vocab_size`` on are padding and get probability 0. Products run in autocast's
    dtype where it is on. Both gradients are computed in the forward pass, chunk by chunk, so that logits are
    neither kept nor computed twice.

    Args:
        hidden_MD: Final hidden states [M, D].
        head_VD: Weight of the output head [V, D], V >= vocab_size.
        targets_M: Target ids [M]; ``IGNORE`` adds nothing.
        vocab_size: True vocabulary, of all ranks together.
        group: Ranks that share the head's rows, of which ``head_VD`` is this rank's part; the other arguments
            are the same on all. Every rank gets the whole loss, the gradient of its rows, and a term of the
            hidden states' gradient, which is the sum over the group. Per chunk they exchange three numbers a
            token, never logits.
        vocab_begin: Id of the first row of ``head_VD``.
    """
    with in_dtype_of_products(hidden_MD) as dtype:
        loss: Tensor = _LinearCrossEntropy.apply(
            hidden_MD, head_VD, targets_M, vocab_size, dtype, group, vocab_begin
        )
    return loss


@contextlib.contextmanager
def in_dtype_of_products(hidden_MD: Tensor) -> Iterator[torch.dtype]:
    """Gives autocast's dtype where it is on, else the tensor's own, for one who casts himself meanwhile."""
    device = hidden_MD.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_MD.dtype
    with torch.autocast(device, enabled=False):
        yield dtype


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_MD: Tensor,
        head_VD: Tensor,
        targets_M: Tensor,
        vocab_size: int,
        dtype: torch.dtype,
        group: ProcessGroup | None,
        vocab_begin: int,
    ) -> Tensor:
        with_gradients = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        head = head_VD.to(dtype)
        loss = torch.zeros((), dtype=torch.float32, device=hidden_MD.device)
        hidden_gradients = []
        head_gradient: Tensor | None = None
        rows = rows_at_once(len(head), on_gpu=hidden_MD.device.type == "cuda")
        for rows_CD, targets_C in zip(hidden_MD.split(rows), targets_M.split(rows), strict=True):
            rows_CD = rows_CD.to(dtype)
            logits_CV = rows_CD @ head.T
            if group is None:
                loss += _softmax_in_place(logits_CV, targets_C, vocab_size, exact=not with_gradients)
            else:
                loss += _shared_softmax_in_place(logits_CV, targets_C, vocab_size, group, vocab_begin)
            if with_gradients:  # logits_CV now holds d loss / d logits
                hidden_gradients.append(logits_CV @ head)
                if ctx.needs_input_grad[1]:
                    head_gradient = _add_product(head_gradient, logits_CV.T, rows_CD, head_VD.dtype)
        if with_gradients:
            # Not save_for_backward: the engine may then add to these two in place.
            ctx.gradients = [torch.cat(hidden_gradients).to(hidden_MD.dtype), head_gradient]
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        head_gradient_VD, hidden_gradient_MD = ctx.gradients.pop(), ctx.gradients.pop()
        if head_gradient_VD is not None:
            head_gradient_VD.mul_(loss_gradient)
        return hidden_gradient_MD.mul_(loss_gradient), head_gradient_VD, *(None,) * 5


def rows_at_once(vocab_size: int, *, on_gpu: bool) -> int:
    """Returns how many tokens' logits are held at once."""
    return max(ROWS, GPU_LOGITS // vocab_size) if on_gpu else ROWS


def _add_product(total: Tensor | None, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns total + left @ right in ``dtype``; the total may be overwritten."""
    if left.device.type == "cuda" and left.dtype != dtype == torch.float32:
        if total is None:
            return torch.mm(left, right, out_dtype=dtype)
        return torch.addmm(total, left, right, out_dtype=dtype, out=total)
    product = (left @ right).to(dtype)
    return product if total is None else total.add_(product)


def _softmax_in_place(logits_MV: Tensor, targets_M: Tensor, vocab_size: int, *, exact: bool) -> Tensor:
    """Turns logits into (softmax - one-hot of the target); returns the summed loss in fp32."""
    on_cpu = logits_MV.device.type == "cpu"
    if not on_cpu and (fused := _fused_softmax(logits_MV.device)):
        return fused(logits_MV, targets_M, vocab_size)
    logits_MV[:, vocab_size:] = -torch.inf
    quick = on_cpu and not exact and logits_MV.dtype == torch.bfloat16
    rows = max(32, CPU_LOGITS // logits_MV.shape[1]) if on_cpu else len(logits_MV)
    loss = torch.zeros((), dtype=torch.float32, device=logits_MV.device)
    for logits_CV, targets_C in zip(logits_MV.split(rows), targets_M.split(rows), strict=True):
        valid_C1 = (targets_C != IGNORE).unsqueeze(1)
        targets_C1 = targets_C.clamp_min(0).unsqueeze(1)
        softmax_CV, target_C1 = (_rounded_softmax if quick else _exact_softmax)(logits_CV, targets_C1)
        loss -= target_C1.where(valid_C1, 0.0).sum()
        rows_C = torch.arange(len(softmax_CV), device=softmax_CV.device)
        minus_one = softmax_CV.new_tensor(-1.0)
        # Not scatter_add_, which turns all of a bf16 tensor into fp32 and back.
        softmax_CV.index_put_((rows_C, targets_C1.squeeze(1)), minus_one, accumulate=True)
        if not on_cpu or not valid_C1.all():
            softmax_CV.mul_(valid_C1)
        if softmax_CV is not logits_CV:
            logits_CV.copy_(softmax_CV)
    return loss


@functools.cache
def _fused_softmax(device: torch.device) -> Callable[[Tensor, Tensor, int], Tensor] | None:
    """Returns ``_softmax_of_rows`` as one kernel; None where the machine cannot compile it.

    The passes over memory of its operators, one by one, are a quarter of a step of GPT-2 124M on an H100.
    """
    if reason := why_not_compiled(device):
        logger.warning("the loss runs without torch.compile: %s", reason)
        return None
    fused: Callable[[Tensor, Tensor, int], Tensor] = torch.compile(_softmax_of_rows)
    return fused


def _softmax_of_rows(logits_MV: Tensor, targets_M: Tensor, vocab_size: int) -> Tensor:
    """``_softmax_in_place`` without a branch, for a compiler."""
    valid_M1 = (targets_M != IGNORE).unsqueeze(1)
    targets_M1 = targets_M.clamp_min(0).unsqueeze(1)
    ids_V = torch.arange(logits_MV.shape[1], device=logits_MV.device)
    dtype = torch.promote_types(logits_MV.dtype, torch.float32)
    log_softmax_MV = logits_MV.to(dtype).masked_fill(ids_V >= vocab_size, -torch.inf).log_softmax(-1)
    loss = -log_softmax_MV.gather(1, targets_M1).where(valid_M1, 0.0).sum()
    logits_MV.copy_((log_softmax_MV.exp() - (ids_V == targets_M1).to(dtype)) * valid_M1)
    return loss


def _shared_softmax_in_place(
    logits_CV: Tensor, targets_C: Tensor, vocab_size: int, group: ProcessGroup, vocab_begin: int
) -> Tensor:
    """``_softmax_in_place`` where each rank of a group has the logits of ids from ``vocab_begin`` on."""
    logits_CV[:, max(vocab_size - vocab_begin, 0) :] = -torch.inf
    softmax_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32), copy=True)
    max_C1 = softmax_CV.amax(1, keepdim=True)
    all_reduce(max_C1, ReduceOp.MAX, group=group)
    softmax_CV.sub_(max_C1)
    rows_C1 = (targets_C - vocab_begin).unsqueeze(1)
    here_C1 = (targets_C != IGNORE).unsqueeze(1) & (rows_C1 >= 0) & (rows_C1 < logits_CV.shape[1])
    rows_C1 = rows_C1.clamp(0, logits_CV.shape[1] - 1)
    target_C1 = softmax_CV.gather(1, rows_C1).where(here_C1, 0.0)
    softmax_CV.exp_()
    sums_2C1 = torch.stack((softmax_CV.sum(1, keepdim=True), target_C1))
    all_reduce(sums_2C1, group=group)
    sum_C1, target_C1 = sums_2C1
    valid_C1 = (targets_C != IGNORE).unsqueeze(1)
    softmax_CV.mul_(valid_C1 / sum_C1)
    softmax_CV.scatter_add_(1, rows_C1, -here_C1.to(softmax_CV.dtype))
    logits_CV.copy_(softmax_CV)
    loss: Tensor = (sum_C1.log() - target_C1).where(valid_C1, 0.0).sum()
    return loss


def _exact_softmax(logits_CV: Tensor, targets_C1: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the softmax in fp32, and the target's log-probability."""
    dtype = torch.promote_types(logits_CV.dtype, torch.float32)
    log_softmax_CV = torch.log_softmax(logits_CV, -1, dtype=dtype)
    target_C1 = log_softmax_CV.gather(1, targets_C1)
    return log_softmax_CV.exp_(), target_C1


def _rounded_softmax(logits_CV: Tensor, targets_C1: Tensor) -> tuple[Tensor, Tensor]:
    """Turns logits into a softmax that is rounded to bf16, in which it is stored anyway: half of the passes.

    The target's probability is rounded too: 0.002 of a nat at most, below the rounding of the logits.
    """
    softmax_CV = torch.softmax(logits_CV, -1, out=logits_CV)
    tiny = torch.finfo(torch.float32).tiny  # improbable beyond fp32 counts as 87 nats
    return softmax_CV, softmax_CV.gather(1, targets_C1).float().clamp_min(tiny).log()
