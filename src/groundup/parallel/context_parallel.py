"""Context parallelism: ranks share the tokens of a sequence, and gather keys and values to attend.

A sequence is cut into 2 cp chunks, of which each rank takes two, one from either end, so that causal
attention costs all ranks the same. In each layer the keys and values of all ranks are gathered, and the
queries of each chunk attend to those up to the chunk's own end; their gradients are summed back to the
ranks that they came from (Llama 3: Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2). Everything
else in a transformer works on tokens one by one, and needs their positions at most.

Shapes: B rows, S tokens of a sequence, T tokens of a rank, C tokens of a chunk, N heads, K kv heads,
H head dim.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from groundup.models import Model
from groundup.models.masks import Mask, Masks


def context_reasons(cp: int, sequence_length: int) -> list[str]:
    """Returns why sequences cannot be divided over ``cp`` ranks, a sentence each."""
    if cp > 1 and sequence_length % (2 * cp):
        return [f"sequence_length {sequence_length} is not divisible by 2 x cp {cp}"]
    return []


def chunks_of_rank(cp_rank: int, cp: int, length: int) -> tuple[slice, slice]:
    """Returns a rank's two chunks of a sequence, one from either end; ``length`` is a multiple of 2 cp."""
    size = length // (2 * cp)
    first, second = cp_rank * size, (2 * cp - 1 - cp_rank) * size
    return slice(first, first + size), slice(second, second + size)


def tokens_of_rank(x_BS: Tensor, cp_rank: int, cp: int) -> Tensor:
    """Returns a rank's part [B, T] of values of each token [B, S]."""
    return torch.cat([x_BS[:, chunk] for chunk in chunks_of_rank(cp_rank, cp, x_BS.shape[1])], dim=1)


def apply_context_parallel(model: Model, group: ProcessGroup) -> None:
    """Makes a model, or a part of one, attend over the tokens of all ranks of a group, in place.

    Its forward pass is then collective, and takes tokens cut by ``tokens_of_rank`` with their positions.
    """
    assert isinstance(model.masks, Masks), "context parallelism is applied once"
    model.masks = _SharedMasks(model.masks, group)


class _SharedMasks(nn.Module):
    """Makes the masks of a rank's two chunks."""

    def __init__(self, masks: Masks, group: ProcessGroup) -> None:
        super().__init__()
        self.masks = masks
        self._group = group

    def forward(self, documents_BT: Tensor | None, *, like: Tensor) -> Mask:
        """Makes the mask as ``Masks`` does; documents are numbered in the whole row."""
        if documents_BT is None:
            causal = self.masks(None, like=like)
            return _SharedMask((causal, causal), self._group)
        documents_BS = _gathered(documents_BT, self._group, dim=1)
        chunks = chunks_of_rank(self._group.rank(), self._group.size(), documents_BS.shape[1])
        masks = [self.masks(documents_BS[:, : c.stop], like=like, first_query=c.start) for c in chunks]
        return _SharedMask(masks, self._group)


class _SharedMask:
    """Attention of a rank's queries to the keys of all ranks."""

    def __init__(self, masks: Sequence[Mask], group: ProcessGroup) -> None:
        self._masks = masks
        self._group = group

    # A graph break: the rest of a layer is compiled, before and after it.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, q_BNTH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, *, dropout: float) -> Tensor:
        """softmax(q k^T / sqrt(H)) v over what each of this rank's queries sees: [B, N, T, H]."""
        keys_values: Tensor = _GatherTokens.apply(torch.stack((k_BKTH, v_BKTH)), self._group)
        k_BKSH, v_BKSH = keys_values.unbind()
        chunks = chunks_of_rank(self._group.rank(), self._group.size(), k_BKSH.shape[2])
        parts = [
            mask.attend(q_BNCH, k_BKSH[:, :, : chunk.stop], v_BKSH[:, :, : chunk.stop], dropout=dropout)
            for mask, chunk, q_BNCH in zip(self._masks, chunks, q_BNTH.chunk(2, dim=2), strict=True)
        ]
        return torch.cat(parts, dim=2)


class _GatherTokens(torch.autograd.Function):
    """[..., T, H] -> [..., S, H] in the order of the sequence; the ranks' gradients are summed."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(part, group, dim=-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        group = ctx.group
        chunks = gradient.chunk(2 * group.size(), dim=-2)
        pairs = zip(chunks[: group.size()], reversed(chunks[group.size() :]), strict=True)
        parts = [torch.cat(pair, dim=-2) for pair in pairs]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts, group=group)
        return mine, None


def _gathered(part: Tensor, group: ProcessGroup, *, dim: int) -> Tensor:
    """Returns the parts of all ranks, joined in the order of the tokens."""
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    pairs = [one.chunk(2, dim) for one in parts]
    return torch.cat([*(first for first, _ in pairs), *(second for _, second in reversed(pairs))], dim)
