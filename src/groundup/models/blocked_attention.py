"""Causal attention for training on a CPU, where matrix products are quick and PyTorch's kernel is not.

The causal square is cut into blocks of queries, each against the keys up to its own end: nearly half
of the work is never done, and what is left runs in the matrix library. Where documents are kept apart,
a block begins at the first key that any of its queries sees. On 2 cores with bf16 instructions a
forward and backward pass takes a third of the time of PyTorch's fused kernel (see ``docs/LOG.md``),
for a memory of 5/8 T^2 weights a head at T = 512.

Shapes: B rows, N heads, T tokens, H head dim, Z rows times heads, Q queries of a block, S its keys.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 128


class Keys(NamedTuple):
    """What the queries [begin, end) of a block see: keys [first, end), the future apart.

    Attributes:
        first: The first key that any of them sees.
        hidden_B1QS: Added to the scores, -inf where a key is of the future or of another document;
            None where only the future is hidden.
    """

    first: int
    hidden_B1QS: Tensor | None


def blocked_causal_attention(
    q_BNTH: Tensor, k_BNTH: Tensor, v_BNTH: Tensor, blocks: Sequence[Keys] | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(H)) v over each token and those before it: [B, N, T, H], heads equal in number.

    Args:
        q_BNTH: Queries.
        k_BNTH: Keys.
        v_BNTH: Values.
        blocks: From ``document_blocks``, of the same dtype; None lets a token see all before it.
    """
    if blocks is None:
        blocks = [Keys(0, None)] * -(-q_BNTH.shape[2] // _BLOCK)
    y_BNTH: Tensor = _BlockedAttention.apply(q_BNTH, k_BNTH, v_BNTH, blocks)
    return y_BNTH


def document_blocks(documents_BT: Tensor, dtype: torch.dtype) -> list[Keys]:
    """The keys of each block of queries, where a token sees its own document only.

    Args:
        documents_BT: Number of each token's document, not decreasing along a row.
        dtype: Of queries and keys.
    """
    length = documents_BT.shape[1]
    index_T = torch.arange(length)
    is_first_BT = documents_BT.diff(dim=1, prepend=documents_BT[:, :1] - 1) != 0
    first_BT = (is_first_BT * index_T).cummax(1).values  # of the token's document in the row
    blocks = []
    for begin in range(0, length, _BLOCK):
        end = min(begin + _BLOCK, length)
        first = int(first_BT[:, begin].min())
        hidden_B1QS = None
        if int(first_BT[:, end - 1].max()) > first:
            keys_S = index_T[first:end]
            first_BQ1 = first_BT[:, begin:end, None]
            hidden_BQS = (keys_S < first_BQ1) | (keys_S > index_T[begin:end, None])
            hidden_B1QS = torch.zeros(hidden_BQS.shape, dtype=dtype).masked_fill_(hidden_BQS, -torch.inf)
            hidden_B1QS = hidden_B1QS.unsqueeze(1)
        blocks.append(Keys(first, hidden_B1QS))
    return blocks


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BNTH: Tensor, k_BNTH: Tensor, v_BNTH: Tensor, blocks: Sequence[Keys]) -> Tensor:
        heads, length = q_BNTH.shape[1:3]
        q_ZTH, k_ZTH, v_ZTH = (x.reshape(-1, *x.shape[2:]) for x in (q_BNTH, k_BNTH, v_BNTH))
        q_ZTH = q_ZTH * q_ZTH.shape[2] ** -0.5
        future_QQ = q_ZTH.new_full((_BLOCK, _BLOCK), -torch.inf).triu(1)
        y_ZTH = torch.empty_like(q_ZTH)
        weights = []
        for begin, keys in zip(range(0, length, _BLOCK), blocks, strict=True):
            end, first = min(begin + _BLOCK, length), keys.first
            scores_ZQS = q_ZTH[:, begin:end] @ k_ZTH[:, first:end].transpose(1, 2)
            if keys.hidden_B1QS is None:
                scores_ZQS[:, :, begin - first :] += future_QQ[: end - begin, : end - begin]
            else:
                scores_ZQS.unflatten(0, (-1, heads)).add_(keys.hidden_B1QS)
            weights_ZQS = scores_ZQS.softmax(-1)
            y_ZTH[:, begin:end] = weights_ZQS @ v_ZTH[:, first:end]
            weights.append(weights_ZQS)
        ctx.save_for_backward(q_ZTH, k_ZTH, v_ZTH, *weights)
        ctx.first_keys = [keys.first for keys in blocks]
        return y_ZTH.view(q_BNTH.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_BNTH: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_ZTH, k_ZTH, v_ZTH, *weights = ctx.saved_tensors
        dy_ZTH = dy_BNTH.reshape(q_ZTH.shape)
        length = q_ZTH.shape[1]
        dq_ZTH, dk_ZTH, dv_ZTH = torch.empty_like(q_ZTH), torch.zeros_like(k_ZTH), torch.zeros_like(v_ZTH)
        for weights_ZQS, begin, first in zip(weights, range(0, length, _BLOCK), ctx.first_keys, strict=True):
            end = min(begin + _BLOCK, length)
            dy_ZQH = dy_ZTH[:, begin:end]
            dv_ZTH[:, first:end] += weights_ZQS.transpose(1, 2) @ dy_ZQH
            dweights_ZQS = dy_ZQH @ v_ZTH[:, first:end].transpose(1, 2)
            dscores_ZQS = torch._softmax_backward_data(dweights_ZQS, weights_ZQS, -1, weights_ZQS.dtype)
            dq_ZTH[:, begin:end] = dscores_ZQS @ k_ZTH[:, first:end]
            dk_ZTH[:, first:end] += dscores_ZQS.transpose(1, 2) @ q_ZTH[:, begin:end]
        dq_ZTH *= q_ZTH.shape[2] ** -0.5
        shape = dy_BNTH.shape
        return dq_ZTH.view(shape), dk_ZTH.view(shape), dv_ZTH.view(shape), None
