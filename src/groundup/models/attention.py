"""Causal self-attention, multi-head and grouped-query, over PyTorch's fused kernels.

Shapes: B batch, T new tokens, S tokens attended to, D model, N heads, K kv heads, H head dim.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from groundup.models.blocked_attention import blocked_causal_attention
from groundup.models.cache import KeyValueCache
from groundup.models.document_mask import DocumentMask, repeat_heads


class Rope:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864), rotating halves as Llama and Hugging Face do.

    Args:
        head_dim: H, even.
        base: The slowest wave length is about 2 pi base.
    """

    def __init__(self, head_dim: int, base: float) -> None:
        self.head_dim = head_dim
        self.base = base

    def angles(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, 1, T, H] of the rotation at each position, in fp32."""
        exponents = torch.arange(0, self.head_dim, 2, device=positions_BT.device).float() / self.head_dim
        angles_BTh = positions_BT.float().unsqueeze(-1) * self.base**-exponents
        angles_B1TH = torch.cat((angles_BTh, angles_BTh), dim=-1).unsqueeze(1)
        return angles_B1TH.cos(), angles_B1TH.sin()


def rotate(x_BNTH: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates each (i, i + H/2) pair of a head by its position's angle."""
    cos, sin = angles
    first, second = x_BNTH.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x_BNTH * cos + turned * sin).to(x_BNTH.dtype)


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
        dropout: Of attention weights, while training.
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
        angles: tuple[Tensor, Tensor] | None = None,
        documents: DocumentMask | None = None,
        cache: KeyValueCache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """Attends from each token to itself and those before it, of its document; returns [B, T, D]."""
        q_BNTH, k_BKTH, v_BKTH = (
            project(x_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.wq, self.wk, self.wv)
        )
        if angles is not None:
            q_BNTH, k_BKTH = rotate(q_BNTH, angles), rotate(k_BKTH, angles)
        if cache is not None:
            k_BKTH, v_BKTH = cache.append(layer, k_BKTH, v_BKTH)
        dropout = self.dropout if self.training else 0.0
        if documents is None:
            y_BNTH = attend(q_BNTH, k_BKTH, v_BKTH, dropout=dropout)
        else:
            y_BNTH = documents.attend(q_BNTH, k_BKTH, v_BKTH, dropout=dropout)
        return self.wo(y_BNTH.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


def attend(q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, *, dropout: float = 0.0) -> Tensor:
    """softmax(q k^T / sqrt(H)) v, where the T queries are the last of the S tokens; returns [B, N, T, H]."""
    num_new, num_all = q_BNTH.shape[2], k_BKSH.shape[2]
    grouped = q_BNTH.shape[1] != k_BKSH.shape[1]
    causal = num_new == num_all > 1
    if causal and not dropout and q_BNTH.device.type == "cpu" and q_BNTH.dtype == torch.bfloat16:
        k_BKSH, v_BKSH = repeat_heads(k_BKSH, q_BNTH), repeat_heads(v_BKSH, q_BNTH)
        with torch.autocast("cpu", enabled=False):
            return blocked_causal_attention(q_BNTH, k_BKSH, v_BKSH)
    mask = None
    if 1 < num_new < num_all:  # SDPA's own causal mask is aligned to the first token, not the last
        mask = torch.ones(num_new, num_all, dtype=torch.bool, device=q_BNTH.device).tril(num_all - num_new)
    return scaled_dot_product_attention(
        q_BNTH, k_BKSH, v_BKSH, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
    )
