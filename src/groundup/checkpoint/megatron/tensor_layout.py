"""How Megatron-LM lays out fused tensors and divides them among tensor-parallel ranks.

Queries, keys and values are one tensor, ordered by head in a way that changed with the checkpoint's
version; the gate and the up projection of a SwiGLU are one tensor too, of which each rank holds the two
halves of its part. Rows: G groups (key/value heads), N query heads, H head dim.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from groundup.checkpoint.huggingface.names import NameRule
from groundup.models import ModelConfig, axes_of
from groundup.models.spec import dimensions_of

_SPLIT_DIMENSIONS = ("vocab", "heads", "kv_heads", "ffn")
CURRENT_VERSION = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """How our tensors lie in theirs, for one model and one checkpoint version.

    Attributes:
        config: The model.
        version: 0: rows [3, N, H]; 1: [N, H, 3]; 2 and 3: [G, N / G + 2, H].
    """

    config: ModelConfig
    version: float = CURRENT_VERSION

    def unpack(self, rule: NameRule, theirs: Tensor) -> list[Tensor]:
        """The parts of ours in one rank's tensor."""
        if len(rule.ours) == 3:
            return self._unpack_qkv(theirs)
        return list(theirs.chunk(len(rule.ours)))

    def pack(self, rule: NameRule, ours: Sequence[Tensor]) -> Tensor:
        """One rank's tensor of its parts of ours, in the current version's layout."""
        assert self.version == CURRENT_VERSION, "older layouts are only read"
        if len(rule.ours) == 3:
            rest = ours[0].shape[1:]
            width = self.config.head_dim
            groups = ours[1].shape[0] // width
            query, key, value = (part.reshape(groups, -1, width, *rest) for part in ours)
            return torch.cat((query, key, value), dim=1).reshape(-1, *rest)
        return torch.cat(tuple(ours)) if len(ours) > 1 else ours[0]

    def _unpack_qkv(self, theirs: Tensor) -> list[Tensor]:
        rest, width = theirs.shape[1:], self.config.head_dim
        if self.version == 0:
            return [part.reshape(-1, *rest) for part in theirs.reshape(3, -1, *rest)]
        if self.version == 1:
            by_head = theirs.reshape(-1, width, 3, *rest)
            return [by_head[:, :, part].reshape(-1, *rest) for part in range(3)]
        heads = self.config.num_heads // self.config.num_kv_heads
        by_group = theirs.reshape(-1, heads + 2, width, *rest)
        parts = (by_group[:, :heads], by_group[:, heads], by_group[:, heads + 1])
        return [part.reshape(-1, *rest) for part in parts]


def split_dim(name: str, config: ModelConfig) -> int | None:
    """The dimension along which tensor-parallel ranks divide one of our parameters; None: each has it all."""
    for dim, dimension in enumerate(dimensions_of(axes_of(config), name)):
        if dimension in _SPLIT_DIMENSIONS:
            return dim
    return None


def fused_shape(
    rule: NameRule, shapes: Sequence[tuple[int, ...]], config: ModelConfig, tp: int
) -> tuple[int, ...]:
    """The shape of one rank's tensor of theirs, from the whole shapes of ours."""
    dim = split_dim(rule.ours[0], config)
    shape = [sum(shape[0] for shape in shapes), *shapes[0][1:]]
    if dim is not None:
        shape[dim] //= tp
    return tuple(shape)
