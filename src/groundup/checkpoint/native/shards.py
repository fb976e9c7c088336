"""Which part of a logical tensor a rank holds, and who writes what several ranks hold.

A part is a box: FSDP and tensor parallelism cut along dimensions, and padded vocabulary rows, which a
checkpoint does not have, are clipped off each box. So neither saving nor loading ever gathers a tensor.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.logical_tensors import has_vocabulary
from groundup.models import ModelConfig

Plan = Mapping[tuple[str, str], "ShardMetadata"]
"""Group ("model", "optimizer", ...) and name of a tensor -> what a rank holds of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """A rectangular part of a tensor."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements; 1 of a scalar's."""
        return math.prod(self.shape)

    def overlap(self, other: "Chunk") -> "Chunk | None":
        """What two boxes of a tensor share; None where they share nothing."""
        begins = [max(pair) for pair in zip(self.offset, other.offset, strict=True)]
        ends = [
            min(a + length, b + other_length)
            for a, length, b, other_length in zip(
                self.offset, self.shape, other.offset, other.shape, strict=True
            )
        ]
        shape = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
        return Chunk(tuple(begins), shape) if all(length > 0 for length in shape) else None

    def of(self, tensor: Tensor, holder: "Chunk") -> Tensor:
        """The view of this box in a tensor that holds ``holder``."""
        for dim, (begin, origin, length) in enumerate(
            zip(self.offset, holder.offset, self.shape, strict=True)
        ):
            tensor = tensor.narrow(dim, begin - origin, length)
        return tensor


@dataclasses.dataclass(frozen=True, slots=True)
class ShardMetadata:
    """What a rank holds of a tensor: dtype and shape of the whole, and the box."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    box: Chunk

    @property
    def size_bytes(self) -> int:
        """Bytes of the box."""
        return self.box.size * self.dtype.itemsize


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """This rank's part of a logical tensor.

    Attributes:
        held: Its dtype, the logical shape and the box, which is empty where this rank has only padding.
        values: Of the box, a view of what the model or the optimizer has.
        padding: The rows of padded vocabulary ids that this rank has besides, a view too.
    """

    held: ShardMetadata
    values: Tensor
    padding: Tensor


def local_shard_of(key: str, tensor: Tensor, config: ModelConfig) -> Part:
    """A rank's part of a parameter, or of something in a parameter's shape.

    Args:
        key: Name of the parameter, or "name/entry".
        tensor: Whole, a DTensor without open sums, or a scalar.
        config: Of the model.
    """
    local = tensor.detach()
    box = Chunk((0,) * tensor.ndim, tuple(tensor.shape))
    if hasattr(tensor, "placements"):
        box = local_box(tensor)
        spread: Any = tensor  # a DTensor, whose module takes a while to import
        local = spread.to_local().detach()
        assert tuple(local.shape) == box.shape, f"{key}: local shape {tuple(local.shape)}, expected {box}"
    shape = tuple(tensor.shape)
    if shape and has_vocabulary(key.split("/")[0], config):
        shape = (config.vocab_size, *shape[1:])
    rows = box.shape[0] if shape else 0
    true_rows = max(0, min(rows, shape[0] - box.offset[0])) if shape else 0
    held = ShardMetadata(
        tensor.dtype, shape, Chunk(box.offset, (true_rows, *box.shape[1:])) if shape else box
    )
    if not shape:
        return Part(held, local, local.new_empty(0))
    return Part(held, local[:true_rows], local[true_rows:])


def checkpoint_name(key: str, config: ModelConfig) -> str:
    """The name in a checkpoint of a parameter, or of a "parameter/entry" of the optimizer.

    The last stage of a pipeline has a copy of a tied head, which is the embedding.
    """
    name, slash, entry = key.partition("/")
    return f"embed.tokens.weight{slash}{entry}" if config.tied_embedding and name == "head.weight" else key


def local_box(tensor: Any) -> Chunk:
    """The box of a DTensor that this rank has.

    FSDP cuts what tensor parallelism has cut, though its dimension of the mesh comes first: its placement
    is then a ``_StridedShard``. So plain shards go first; then the box is one run of rows.
    """
    mesh = tensor.device_mesh
    offset, shape = [0] * tensor.ndim, list(tensor.shape)
    cuts = [
        (axis, placement) for axis, placement in enumerate(tensor.placements) if hasattr(placement, "dim")
    ]
    for axis, placement in sorted(cuts, key=lambda cut: hasattr(cut[1], "split_factor")):
        dim = placement.dim
        length = -(-shape[dim] // mesh.size(axis))  # as torch.chunk: the last ranks may have less, or nothing
        begin = min(length * mesh.get_local_rank(axis), shape[dim])
        offset[dim] += begin
        shape[dim] = min(length, shape[dim] - begin)
    return Chunk(tuple(offset), tuple(shape))


def plan_save(plans: Sequence[Plan]) -> list[dict[tuple[str, str], ShardMetadata]]:
    """What each rank writes: every box of every tensor once, the bytes spread as evenly as can be.

    All ranks work this out from the same plans. Largest boxes first, each to the holder with the least.

    Args:
        plans: What each rank holds.
    """
    holders: dict[tuple[str, str, Chunk], list[int]] = {}
    for rank, plan in enumerate(plans):
        for (group, name), held in plan.items():
            if held.box.size:
                holders.setdefault((group, name, held.box), []).append(rank)
    shares: list[dict[tuple[str, str], ShardMetadata]] = [{} for _ in plans]
    loads = [0] * len(plans)
    found = [(plans[ranks[0]][key[:2]], key, ranks) for key, ranks in holders.items()]
    for held, (group, name, _), ranks in sorted(
        found, key=lambda one: (-one[0].size_bytes, one[1][:2], one[1][2].offset)
    ):
        rank = min(ranks, key=lambda rank: (loads[rank], rank))
        shares[rank][group, name] = held
        loads[rank] += held.size_bytes
    _require_whole(shares)
    return [{key: share[key] for key in sorted(share)} for share in shares]


def _require_whole(shares: Sequence[Mapping[tuple[str, str], ShardMetadata]]) -> None:
    """Our own invariant, for a checkpoint that lacks a part would be found out only when it is needed."""
    sizes: dict[tuple[str, str], int] = {}
    shapes: dict[tuple[str, str], tuple[int, ...]] = {}
    for share in shares:
        for key, held in share.items():
            sizes[key] = sizes.get(key, 0) + held.box.size
            assert shapes.setdefault(key, held.shape) == held.shape, f"ranks disagree on the shape of {key}"
    for key, size in sizes.items():
        assert size == math.prod(shapes[key]), f"the ranks' parts of {key} are not the whole"
