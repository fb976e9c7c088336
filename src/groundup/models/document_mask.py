"""Attention that stays within documents: worked out once a forward pass, used by every layer.

Three kernels give the same result; which one runs follows from the device, the dtype and dropout:

- variable-length flash attention, on a GPU that has it, in half precision;
- blocks of queries against the keys of their documents (``blocked_attention``), on a CPU;
- PyTorch's attention with a dense mask, everywhere else, and wherever attention has dropout.

Shapes: B rows, T tokens of a row, M = B T, N heads, K kv heads, H head dim, R documents of all rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from groundup.models.blocked_attention import Keys, blocked_causal_attention, document_blocks

# Plain classes: torch.compile then guards on their type alone, and not on numbers that every batch changes.


class DocumentBlocks:
    """For ``blocked_causal_attention``."""

    def __init__(self, documents_BT: Tensor, dtype: torch.dtype) -> None:
        self.blocks: Sequence[Keys] = document_blocks(documents_BT, dtype)

    # Not compiled: the sizes of the blocks differ from batch to batch.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, q_BNTH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, *, dropout: float) -> Tensor:
        """softmax(q k^T / sqrt(H)) v within each document: [B, N, T, H]."""
        assert not dropout, "the dense mask is for dropout"
        k_BNTH, v_BNTH = repeat_heads(k_BKTH, q_BNTH), repeat_heads(v_BKTH, q_BNTH)
        with torch.autocast("cpu", enabled=False):
            return blocked_causal_attention(q_BNTH, k_BNTH, v_BNTH, self.blocks)


class DocumentOffsets:
    """For variable-length attention: where each document begins in the rows, one behind the other."""

    def __init__(self, documents_BT: Tensor) -> None:
        self.offsets_R = document_offsets(documents_BT)

    def attend(self, q_BNTH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, *, dropout: float) -> Tensor:
        """softmax(q k^T / sqrt(H)) v within each document: [B, N, T, H]."""
        assert not dropout, "the dense mask is for dropout"
        rows, _, length, _ = q_BNTH.shape
        # torch 2.11's varlen_attn has no option for grouped heads.
        k_BNTH, v_BNTH = repeat_heads(k_BKTH, q_BNTH), repeat_heads(v_BKTH, q_BNTH)
        q_MNH, k_MNH, v_MNH = (x.transpose(1, 2).flatten(0, 1) for x in (q_BNTH, k_BNTH, v_BNTH))
        offsets_R = self.offsets_R
        causal = (-1, 0)
        y_MNH = varlen_attn(q_MNH, k_MNH, v_MNH, offsets_R, offsets_R, length, length, window_size=causal)
        assert isinstance(y_MNH, Tensor), "it was asked for nothing else"
        y_BTNH: Tensor = y_MNH.unflatten(0, (rows, length))
        return y_BTNH.transpose(1, 2)


class DenseMask:
    """For PyTorch's attention."""

    def __init__(self, documents_BT: Tensor) -> None:
        self.mask_B1TT = dense_mask(documents_BT)

    def attend(self, q_BNTH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, *, dropout: float) -> Tensor:
        """softmax(q k^T / sqrt(H)) v within each document: [B, N, T, H]."""
        grouped = q_BNTH.shape[1] != k_BKTH.shape[1]
        return scaled_dot_product_attention(
            q_BNTH, k_BKTH, v_BKTH, attn_mask=self.mask_B1TT, dropout_p=dropout, enable_gqa=grouped
        )


DocumentMask = DocumentBlocks | DocumentOffsets | DenseMask


def document_mask(documents_BT: Tensor, *, like: Tensor, head_dim: int, dropout: float) -> DocumentMask:
    """What the layers of this forward pass need to keep attention within documents.

    Args:
        documents_BT: Number of each token's document within its row, not decreasing along it.
        like: Any activation; its device and dtype (autocast's, where it is on) are the attention's.
        head_dim: H.
        dropout: Of attention weights, in this pass.
    """
    device = like.device
    autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if autocast else like.dtype
    if dropout:
        return DenseMask(documents_BT)
    if device.type == "cpu":
        return DocumentBlocks(documents_BT, dtype)
    if device.type == "cuda" and varlen_attention_fits(
        dtype, head_dim, capability=torch.cuda.get_device_capability(device)
    ):
        return DocumentOffsets(documents_BT)
    return DenseMask(documents_BT)


def varlen_attention_fits(dtype: torch.dtype, head_dim: int, *, capability: tuple[int, int]) -> bool:
    """Whether a CUDA device of this compute capability runs ``varlen_attn`` on such heads.

    FlashAttention-2 needs half precision, compute capability 8.0 and heads of at most 256, a multiple
    of 8 (Dao 2023, arXiv:2307.08691, and the checks of PyTorch's ``mha_varlen_fwd``).
    """
    return (
        dtype in (torch.float16, torch.bfloat16)
        and head_dim % 8 == 0
        and head_dim <= 256
        and capability >= (8, 0)
        and torch.version.hip is None
        and torch.backends.cuda.is_flash_attention_available()
    )


def document_offsets(documents_BT: Tensor) -> Tensor:
    """Where each document begins in the B T tokens, and their number behind: int32 [R + 1]."""
    starts_M = (documents_BT.diff(dim=1, prepend=documents_BT[:, :1] - 1) != 0).flatten()
    offsets_R = starts_M.nonzero().flatten()
    return torch.cat((offsets_R, offsets_R.new_tensor([starts_M.numel()]))).int()


def dense_mask(documents_BT: Tensor) -> Tensor:
    """True where token t sees token s, one not after it in the same document: bool [B, 1, T, T]."""
    same_BTT = documents_BT.unsqueeze(2) == documents_BT.unsqueeze(1)
    return same_BTT.tril().unsqueeze(1)


def repeat_heads(k_BKTH: Tensor, q_BNTH: Tensor) -> Tensor:
    """Keys or values with as many heads as the queries have: [B, N, T, H]."""
    repeats = q_BNTH.shape[1] // k_BKTH.shape[1]
    return k_BKTH if repeats == 1 else k_BKTH.repeat_interleave(repeats, 1)
