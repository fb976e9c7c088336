"""Attention masks: what each token sees, computed once a forward pass and used by every layer.

A token sees those before it, in the whole row or within its document. For documents three kernels give the
same result; which one runs follows from the device, the dtype and dropout:

- variable-length flash attention, on a GPU that has it, in half precision;
- blocks of queries against the keys of their documents (``blocked_attention``), on a CPU;
- PyTorch's attention with a dense mask, everywhere else, and wherever attention has dropout.

The queries may be those of the last tokens of a row only; keys are of all of them.

Shapes: B rows, S tokens of a row, T of them with a query, M tokens of all rows, N heads, K kv heads,
H head dim, R documents of all rows.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from groundup.models.blocked_attention import Keys, blocked_causal_attention, document_blocks


class Mask(Protocol):
    """Attention of queries to the keys that they may see."""

    def attend(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, *, dropout: float) -> Tensor:
        """Returns softmax(q k^T / sqrt(H)) v [B, N, T, H], with dropout of the attention weights."""
        ...


class CausalMask:
    """Lets a token see itself and those before it; the T queries are of the last of the S tokens."""

    def attend(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, *, dropout: float) -> Tensor:
        """Returns softmax(q k^T / sqrt(H)) v over each token and those before it: [B, N, T, H]."""
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
    """Makes the mask of a forward pass; a module, because it must know whether the model trains."""

    def __init__(self, *, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.dropout = dropout

    def forward(self, documents_BS: Tensor | None, *, like: Tensor, first_query: int = 0) -> Mask:
        """Returns the mask of a model's input.

        Args:
            documents_BS: Number of each token's document within its row, not decreasing along it; None
                where a row, with what a cache holds, is one document.
            like: Any activation; its device and dtype (autocast's, where it is on) are the attention's.
            first_query: The first token of a row with a query; all later ones have one.
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


# Plain classes: torch.compile then guards on their type alone, and not on numbers that every batch changes.


class DocumentBlocks:
    """The mask of ``blocked_causal_attention``."""

    def __init__(self, documents_BS: Tensor, dtype: torch.dtype, *, first_query: int = 0) -> None:
        self.blocks: Sequence[Keys] = document_blocks(documents_BS, dtype, first_query=first_query)

    # Not compiled: the sizes of the blocks differ from batch to batch.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, *, dropout: float) -> Tensor:
        """Returns softmax(q k^T / sqrt(H)) v within each document: [B, N, T, H]."""
        assert not dropout, "the dense mask is for dropout"
        k_BNSH, v_BNSH = repeat_heads(k_BKSH, q_BNTH), repeat_heads(v_BKSH, q_BNTH)
        with torch.autocast("cpu", enabled=False):
            return blocked_causal_attention(q_BNTH, k_BNSH, v_BNSH, self.blocks)


class DocumentOffsets:
    """The mask of variable-length attention: offsets of documents in the concatenated rows.

    A document's queries are of its last tokens, as the kernel assumes; documents without one are left out.
    """

    def __init__(self, documents_BS: Tensor, *, first_query: int = 0) -> None:
        self.query_offsets_R = document_offsets(documents_BS[:, first_query:])
        self.key_offsets_R = self.query_offsets_R
        self.keys_M: Tensor | None = None  # the tokens that some query sees, where these are not all
        if first_query:
            seen_BS = documents_BS >= documents_BS[:, first_query : first_query + 1]
            self.keys_M = seen_BS.flatten().nonzero().flatten()
            self.key_offsets_R = _offsets(_document_starts(documents_BS).flatten()[self.keys_M])

    def attend(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, *, dropout: float) -> Tensor:
        """Returns softmax(q k^T / sqrt(H)) v within each document: [B, N, T, H]."""
        assert not dropout, "the dense mask is for dropout"
        # torch 2.11's varlen_attn has no option for grouped heads.
        k_BNSH, v_BNSH = repeat_heads(k_BKSH, q_BNTH), repeat_heads(v_BKSH, q_BNTH)
        q_MNH, k_MNH, v_MNH = (x.transpose(1, 2).flatten(0, 1) for x in (q_BNTH, k_BNSH, v_BNSH))
        if self.keys_M is not None:
            k_MNH, v_MNH = k_MNH.index_select(0, self.keys_M), v_MNH.index_select(0, self.keys_M)
        rows, _, num_queries, _ = q_BNTH.shape
        y_MNH = varlen_attn(
            q_MNH,
            k_MNH,
            v_MNH,
            self.query_offsets_R,
            self.key_offsets_R,
            num_queries,
            k_BKSH.shape[2],
            window_size=(-1, 0),  # causal
        )
        assert isinstance(y_MNH, Tensor), "it was asked for nothing else"
        y_BTNH: Tensor = y_MNH.unflatten(0, (rows, num_queries))
        return y_BTNH.transpose(1, 2)


class DenseMask:
    """The mask of PyTorch's attention."""

    def __init__(self, documents_BS: Tensor, *, first_query: int = 0) -> None:
        self.mask_B1TS = dense_mask(documents_BS, first_query=first_query)

    def attend(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, *, dropout: float) -> Tensor:
        """Returns softmax(q k^T / sqrt(H)) v within each document: [B, N, T, H]."""
        grouped = q_BNTH.shape[1] != k_BKSH.shape[1]
        return scaled_dot_product_attention(
            q_BNTH, k_BKSH, v_BKSH, attn_mask=self.mask_B1TS, dropout_p=dropout, enable_gqa=grouped
        )


class BranchMask(DenseMask):
    """For rows of one shared beginning and branches behind it, each of which sees it and itself.

    Args:
        branches_BT: Number of each token's branch within its row; 0 for the beginning.
    """

    def __init__(self, branches_BT: Tensor) -> None:
        same_BTT = branches_BT.unsqueeze(2) == branches_BT.unsqueeze(1)
        self.mask_B1TS = (same_BTT | (branches_BT == 0).unsqueeze(1)).tril().unsqueeze(1)


DocumentMask = DocumentBlocks | DocumentOffsets | DenseMask


def document_mask(
    documents_BS: Tensor, *, like: Tensor, head_dim: int, dropout: float, first_query: int = 0
) -> DocumentMask:
    """Returns a mask that keeps attention within documents, for the fastest kernel; see ``Masks.forward``."""
    device = like.device
    autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if autocast else like.dtype
    if dropout:
        return DenseMask(documents_BS, first_query=first_query)
    if device.type == "cpu":
        return DocumentBlocks(documents_BS, dtype, first_query=first_query)
    if device.type == "cuda" and varlen_attention_fits(
        dtype, head_dim, capability=torch.cuda.get_device_capability(device)
    ):
        return DocumentOffsets(documents_BS, first_query=first_query)
    return DenseMask(documents_BS, first_query=first_query)


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


def document_offsets(documents_BS: Tensor) -> Tensor:
    """Returns where each document begins in the B S tokens, and then their number: int32 [R + 1]."""
    return _offsets(_document_starts(documents_BS).flatten())


def dense_mask(documents_BS: Tensor, *, first_query: int = 0) -> Tensor:
    """Returns whether token t sees token s of the same document, not after it: bool [B, 1, T, S].

    The T tokens are the last of the S, from ``first_query`` on.
    """
    same_BTS = documents_BS[:, first_query:].unsqueeze(2) == documents_BS.unsqueeze(1)
    return same_BTS.tril(first_query).unsqueeze(1)


def repeat_heads(k_BKSH: Tensor, q_BNTH: Tensor) -> Tensor:
    """Repeats heads of keys or values to as many as the queries have: [B, N, S, H]."""
    repeats = q_BNTH.shape[1] // k_BKSH.shape[1]
    return k_BKSH if repeats == 1 else k_BKSH.repeat_interleave(repeats, 1)


def _document_starts(documents_BS: Tensor) -> Tensor:
    """Returns whether a token is the first of its document in the row: bool [B, S]."""
    return documents_BS.diff(dim=1, prepend=documents_BS[:, :1] - 1) != 0


def _offsets(starts_M: Tensor) -> Tensor:
    """Returns the indices of true elements, and then the number of all: int32."""
    offsets_R = starts_M.nonzero().flatten()
    return torch.cat((offsets_R, offsets_R.new_tensor([starts_M.numel()]))).int()
