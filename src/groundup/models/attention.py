"""Causal self-attention, multi-head and grouped-query.

Shapes: B batch, T new tokens, D model, N heads, K kv heads, H head dim.
"""

from torch import Tensor, nn

from groundup.models.kv_cache import KeyValueCache
from groundup.models.masks import Mask
from groundup.models.rope import rotate


class Attention(nn.Module):
    """Causal self-attention with separate query, key and value projections.

    The number of heads is read off the projections' width, so a slice of the heads works unchanged.

    Args:
        hidden_size: D.
        num_heads: N.
        num_kv_heads: K; N must be a multiple of it.
        head_dim: H.
        bias: Whether the query, key and value projections have biases.
        output_bias: Whether the output projection has one.
        dropout: Of attention weights, in training mode.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        bias: bool,
        output_bias: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.dropout = dropout
        self.wq = nn.Linear(hidden_size, num_heads * head_dim, bias=bias)
        self.wk = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=bias)
        self.wv = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=bias)
        self.wo = nn.Linear(num_heads * head_dim, hidden_size, bias=output_bias)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask: Mask,
        angles: tuple[Tensor, Tensor] | None = None,
        cache: KeyValueCache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """Attends from each token to those that the mask, or the cache, lets it see; returns [B, T, D]."""
        q_BNTH, k_BKTH, v_BKTH = (
            project(x_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.wq, self.wk, self.wv)
        )
        if angles is not None:
            q_BNTH, k_BKTH = rotate(q_BNTH, angles), rotate(k_BKTH, angles)
        if cache is not None:
            y_BNTH = cache.attend(layer, q_BNTH, k_BKTH, v_BKTH)
        else:
            dropout = self.dropout if self.training else 0.0
            y_BNTH = mask.attend(q_BNTH, k_BKTH, v_BKTH, dropout=dropout)
        return self.wo(y_BNTH.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]
