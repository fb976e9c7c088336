"""What each token attends to: worked out once a forward pass, used by every layer.

Shapes: B rows, S tokens, T of them with a query, N heads, K kv heads, H head dim.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from groundup.models.blocked_attention import blocked_causal_attention
from groundup.models.document_mask import document_mask, repeat_heads


class Mask(Protocol):
    """Attention of queries to the keys that they may see."""

    def attend(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, *, dropout: float) -> Tensor:
        """softmax(q k^T / sqrt(H)) v over what each query sees; returns [B, N, T, H].

        Args:
            q_BNTH: Queries.
            k_BKSH: Keys.
            v_BKSH: Values.
            dropout: Of attention weights.
        """
        ...


class CausalMask:
    """A token sees itself and those before it; the T queries are the last of the S tokens."""

    def attend(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, *, dropout: float) -> Tensor:
        """softmax(q k^T / sqrt(H)) v over each token and those before it; returns [B, N, T, H]."""
        num_queries, num_keys = q_BNTH.shape[2], k_BKSH.shape[2]
        on_cpu = q_BNTH.device.type == "cpu"
        if num_queries > 1 and not dropout and on_cpu and q_BNTH.dtype == torch.bfloat16:
            k_BNSH, v_BNSH = repeat_heads(k_BKSH, q_BNTH), repeat_heads(v_BKSH, q_BNTH)
            with torch.autocast("cpu", enabled=False):
                return blocked_causal_attention(q_BNTH, k_BNSH, v_BNSH)
        hidden: Tensor | None = None
        if 1 < num_queries < num_keys:  # SDPA's own causal mask is aligned to the first token, not the last
            if on_cpu:
                hidden = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
            else:
                hidden = causal_lower_right(num_queries, num_keys)  # flash attention's own alignment
        return scaled_dot_product_attention(
            q_BNTH,
            k_BKSH,
            v_BKSH,
            attn_mask=hidden,
            dropout_p=dropout,
            is_causal=num_queries == num_keys > 1,
            enable_gqa=q_BNTH.shape[1] != k_BKSH.shape[1],
        )


class Masks(nn.Module):
    """Makes the mask of a forward pass. A module, so that it knows whether the model trains.

    Args:
        head_dim: H.
        dropout: Of attention weights, while training.
    """

    def __init__(self, *, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.dropout = dropout

    def forward(self, documents_BS: Tensor | None, *, like: Tensor, first_query: int = 0) -> Mask:
        """The mask for the tokens of a model's input.

        Args:
            documents_BS: Number of each token's document within its row, not decreasing along it; None
                where a row, behind what a cache holds, is one document.
            like: Any activation; its device and dtype (autocast's, where it is on) are the attention's.
            first_query: The first token of a row that has a query; those after it have one too.
        """
        if documents_BS is None:
            return CausalMask()
        return document_mask(
            documents_BS,
            like=like,
            head_dim=self.head_dim,
            dropout=self.dropout if self.training else 0.0,
            first_query=first_query,
        )
