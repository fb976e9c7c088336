"""Causal attention on a CPU, faster than PyTorch's fused kernel.

Each block of queries is multiplied with the keys up to its own end: nearly half of the work is left out,
and the rest runs in the matrix library. Where documents are kept apart, a block begins at the first key that
any of its queries sees; the queries may be those of the last tokens only. On 2 cores with bf16 instructions a
forward and backward pass takes a third of the time of PyTorch's fused kernel (see ``docs/LOG.md``), for a
memory of 5/8 T^2 weights a head at T = 512.

Shapes: B rows, N heads, T queries, S keys, H head dim, Z rows times heads, Q queries of a block, L its keys.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 128


class Keys(NamedTuple):
    """The keys that a block of queries, of the tokens [begin, end), sees: [first, end) but for the future.

    Attributes:
        first: The first key that any of the queries sees.
        hidden_B1QL: Added to the scores, -inf for keys of the future or of another document; None where only
            the future is hidden.
    """

    first: int
    hidden_B1QL: Tensor | None


def blocked_causal_attention(
    q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, blocks: Sequence[Keys] | None = None
) -> Tensor:
    """Returns softmax(q k^T / sqrt(H)) v [B, N, T, H]; the T queries are of the last of the S tokens.

    ``blocks`` are from ``document_blocks``, of the same dtype; with None a token sees all before it.
    """
    if blocks is None:
        blocks = [Keys(0, None)] * -(-q_BNTH.shape[2] // _BLOCK)
    y_BNTH: Tensor = _BlockedAttention.apply(q_BNTH, k_BNSH, v_BNSH, blocks)
    return y_BNTH


def document_blocks(documents_BS: Tensor, dtype: torch.dtype, *, first_query: int = 0) -> list[Keys]:
    """Returns the keys of each block of queries, where a token sees its own document only.

    Args:
        documents_BS: Number of each token's document, not decreasing along a row.
        dtype: Of queries and keys.
        first_query: The first token with a query; all later ones have one.
    """
    length = documents_BS.shape[1]
    index_S = torch.arange(length)
    is_first_BS = documents_BS.diff(dim=1, prepend=documents_BS[:, :1] - 1) != 0
    first_BS = (is_first_BS * index_S).cummax(1).values  # of the token's document in the row
    blocks = []
    for begin in range(first_query, length, _BLOCK):
        end = min(begin + _BLOCK, length)
        first = int(first_BS[:, begin].min())
        hidden_B1QL = None
        if int(first_BS[:, end - 1].max()) > first:
            keys_L = index_S[first:end]
            first_BQ1 = first_BS[:, begin:end, None]
            hidden_BQL = (keys_L < first_BQ1) | (keys_L > index_S[begin:end, None])
            hidden_B1QL = torch.zeros(hidden_BQL.shape, dtype=dtype).masked_fill_(hidden_BQL, -torch.inf)
            hidden_B1QL = hidden_B1QL.unsqueeze(1)
        blocks.append(Keys(first, hidden_B1QL))
    return blocks


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, blocks: Sequence[Keys]) -> Tensor:
        heads, num_queries = q_BNTH.shape[1:3]
        past = k_BNSH.shape[2] - num_queries  # tokens without a query
        q_ZTH, k_ZSH, v_ZSH = (x.reshape(-1, *x.shape[2:]) for x in (q_BNTH, k_BNSH, v_BNSH))
        q_ZTH = q_ZTH * q_ZTH.shape[2] ** -0.5
        future_QQ = q_ZTH.new_full((_BLOCK, _BLOCK), -torch.inf).triu(1)
        y_ZTH = torch.empty_like(q_ZTH)
        weights = []
        for begin, keys in zip(range(0, num_queries, _BLOCK), blocks, strict=True):
            end, first = min(begin + _BLOCK, num_queries), keys.first
            scores_ZQL = q_ZTH[:, begin:end] @ k_ZSH[:, first : past + end].transpose(1, 2)
            if keys.hidden_B1QL is None:
                scores_ZQL[:, :, past + begin - first :] += future_QQ[: end - begin, : end - begin]
            else:
                scores_ZQL.unflatten(0, (-1, heads)).add_(keys.hidden_B1QL)
            weights_ZQL = torch.softmax(scores_ZQL, -1, out=scores_ZQL)
            y_ZTH[:, begin:end] = weights_ZQL @ v_ZSH[:, first : past + end]
            weights.append(weights_ZQL)
        ctx.save_for_backward(q_ZTH, k_ZSH, v_ZSH, *weights)
        ctx.first_keys = [keys.first for keys in blocks]
        return y_ZTH.view(q_BNTH.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_BNTH: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_ZTH, k_ZSH, v_ZSH, *weights = ctx.saved_tensors
        dy_ZTH = dy_BNTH.reshape(q_ZTH.shape)
        num_queries, num_keys = q_ZTH.shape[1], k_ZSH.shape[1]
        past = num_keys - num_queries
        dq_ZTH, dk_ZSH, dv_ZSH = torch.empty_like(q_ZTH), torch.zeros_like(k_ZSH), torch.zeros_like(v_ZSH)
        for weights_ZQL, begin, first in zip(
            weights, range(0, num_queries, _BLOCK), ctx.first_keys, strict=True
        ):
            end = min(begin + _BLOCK, num_queries)
            keys = slice(first, past + end)
            dy_ZQH = dy_ZTH[:, begin:end]
            dv_ZSH[:, keys].baddbmm_(weights_ZQL.transpose(1, 2), dy_ZQH)
            dweights_ZQL = dy_ZQH @ v_ZSH[:, keys].transpose(1, 2)
            dscores_ZQL = torch._softmax_backward_data(
                dweights_ZQL, weights_ZQL, -1, weights_ZQL.dtype, grad_input=dweights_ZQL
            )
            dq_ZTH[:, begin:end] = dscores_ZQL @ k_ZSH[:, keys]
            dk_ZSH[:, keys].baddbmm_(dscores_ZQL.transpose(1, 2), q_ZTH[:, begin:end])
        dq_ZTH *= q_ZTH.shape[2] ** -0.5
        rows_heads = dy_BNTH.shape[:2]
        dk_BNSH, dv_BNSH = dk_ZSH.unflatten(0, rows_heads), dv_ZSH.unflatten(0, rows_heads)
        return dq_ZTH.view(dy_BNTH.shape), dk_BNSH, dv_BNSH, None
