"""Causal attention for training on a CPU, where matrix products are quick and PyTorch's kernel is not.

The causal square is cut into blocks of queries, each against the keys up to its own end: nearly half
of the work is never done, and what is left runs in the matrix library. On 2 cores with bf16
instructions a forward and backward pass takes a third of the time of PyTorch's fused kernel (see
``docs/LOG.md``), for a memory of 5/8 T^2 weights a head at T = 512.

Shapes: B batch times heads, T tokens, H head dim, Q queries of a block, S keys up to its end.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 128


def blocked_causal_attention(q_BNTH: Tensor, k_BNTH: Tensor, v_BNTH: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(H)) v over each token and all before it: [B, N, T, H], heads equal in number."""
    flat = (x.reshape(-1, *x.shape[-2:]) for x in (q_BNTH, k_BNTH, v_BNTH))
    y_BTH: Tensor = _BlockedAttention.apply(*flat)
    return y_BTH.view(q_BNTH.shape)


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BTH: Tensor, k_BTH: Tensor, v_BTH: Tensor) -> Tensor:
        length = q_BTH.shape[1]
        q_BTH = q_BTH * q_BTH.shape[2] ** -0.5
        future_QQ = q_BTH.new_full((_BLOCK, _BLOCK), -torch.inf).triu(1)
        y_BTH = torch.empty_like(q_BTH)
        weights = []
        for begin in range(0, length, _BLOCK):
            end = min(begin + _BLOCK, length)
            scores_BQS = q_BTH[:, begin:end] @ k_BTH[:, :end].transpose(1, 2)
            scores_BQS[:, :, begin:] += future_QQ[: end - begin, : end - begin]
            weights_BQS = scores_BQS.softmax(-1)
            y_BTH[:, begin:end] = weights_BQS @ v_BTH[:, :end]
            weights.append(weights_BQS)
        ctx.save_for_backward(q_BTH, k_BTH, v_BTH, *weights)
        return y_BTH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_BTH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_BTH, k_BTH, v_BTH, *weights = ctx.saved_tensors
        length = q_BTH.shape[1]
        dq_BTH, dk_BTH, dv_BTH = torch.empty_like(q_BTH), torch.zeros_like(k_BTH), torch.zeros_like(v_BTH)
        for weights_BQS, begin in zip(weights, range(0, length, _BLOCK), strict=True):
            end = min(begin + _BLOCK, length)
            dy_BQH = dy_BTH[:, begin:end]
            dv_BTH[:, :end] += weights_BQS.transpose(1, 2) @ dy_BQH
            dweights_BQS = dy_BQH @ v_BTH[:, :end].transpose(1, 2)
            dscores_BQS = torch._softmax_backward_data(dweights_BQS, weights_BQS, -1, weights_BQS.dtype)
            dq_BTH[:, begin:end] = dscores_BQS @ k_BTH[:, :end]
            dk_BTH[:, :end] += dscores_BQS.transpose(1, 2) @ q_BTH[:, begin:end]
        return dq_BTH * q_BTH.shape[2] ** -0.5, dk_BTH, dv_BTH
