"""Which chunk of a logical tensor a rank holds, and which rank writes what several hold.

FSDP and tensor parallelism cut along dimensions, and padded vocabulary rows, which a checkpoint does not
have, are clipped off; so each rank holds a rectangle, and neither saving nor loading ever gathers a tensor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.logical_tensors import has_vocabulary
from groundup.models import ModelConfig

Key = tuple[str, str]
"""Group ("model", "optimizer", ...) and name of a tensor."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A rectangular part of a tensor."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Returns the number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def end(self) -> tuple[int, ...]:
        """Returns the index behind the last in each dimension."""
        return tuple(begin + length for begin, length in zip(self.offset, self.shape, strict=True))

    def overlap(self, other: "Chunk") -> "Chunk | None":
        """Returns the chunk that two chunks share; None where they share nothing."""
        begins = tuple(map(max, self.offset, other.offset))
        ends = map(min, self.end, other.end)
        shape = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
        return Chunk(begins, shape) if all(length > 0 for length in shape) else None

    def of(self, tensor: Tensor, holder: "Chunk") -> Tensor:
        """Returns the view of this chunk in a tensor that holds ``holder``."""
        for dim, (begin, origin, length) in enumerate(
            zip(self.offset, holder.offset, self.shape, strict=True)
        ):
            tensor = tensor.narrow(dim, begin - origin, length)
        return tensor


def whole_chunk(shape: Sequence[int]) -> Chunk:
    """Returns the chunk that is all of a tensor."""
    return Chunk((0,) * len(shape), tuple(shape))


@dataclass(frozen=True, slots=True)
class ShardMetadata:
    """What a rank holds of a tensor: dtype and shape of the whole, and the chunk."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunk: Chunk

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of the chunk."""
        return self.chunk.size * self.dtype.itemsize


SavePlan = Mapping[Key, ShardMetadata]
"""What a rank holds of each tensor."""


@dataclass(frozen=True, slots=True)
class LocalShard:
    """What this rank holds of a logical tensor.

    Attributes:
        metadata: With an empty chunk where this rank has only padding.
        values: Of the chunk, a view of what the model or the optimizer has.
        padding: The rows of padded vocabulary ids that this rank has besides, a view too.
    """

    metadata: ShardMetadata
    values: Tensor
    padding: Tensor


@dataclass(frozen=True, slots=True)
class ChunkLocation:
    """A chunk of a tensor in a file."""

    file: Path
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """A tensor of a checkpoint: dtype, logical shape, and its chunks, which cover it without overlap."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[ChunkLocation, ...]


def local_shard_of(key: str, tensor: Tensor, config: ModelConfig) -> LocalShard:
    """Returns a rank's shard of a parameter, or of something in a parameter's shape.

    Args:
        key: Name of the parameter, or "name/entry".
        tensor: Whole, a DTensor without open sums, or a scalar.
        config: Of the model.
    """
    local, chunk, shape = tensor.detach(), whole_chunk(tensor.shape), tuple(tensor.shape)
    if hasattr(tensor, "placements"):
        chunk = local_chunk(tensor)
        distributed: Any = tensor  # a DTensor, whose module takes a while to import
        local = distributed.to_local().detach()
        assert tuple(local.shape) == chunk.shape, f"{key}: local shape {tuple(local.shape)}, expected {chunk}"
    if not shape:
        return whole_shard(local)
    if has_vocabulary(key.split("/")[0], config):
        shape = (config.vocab_size, *shape[1:])
    true_rows = max(0, min(chunk.shape[0], shape[0] - chunk.offset[0]))
    true_chunk = Chunk(chunk.offset, (true_rows, *chunk.shape[1:]))
    return LocalShard(ShardMetadata(tensor.dtype, shape, true_chunk), local[:true_rows], local[true_rows:])


def whole_shard(tensor: Tensor) -> LocalShard:
    """Returns a tensor that this rank holds whole and without padding, as a shard."""
    metadata = ShardMetadata(tensor.dtype, tuple(tensor.shape), whole_chunk(tensor.shape))
    return LocalShard(metadata, tensor, tensor.new_empty(0))


def checkpoint_name(key: str, config: ModelConfig) -> str:
    """Returns the name in a checkpoint of a parameter, or of a "parameter/entry" of the optimizer.

    The last stage of a pipeline has a copy of a tied head, which is the embedding.
    """
    name, slash, entry = key.partition("/")
    return f"embed.tokens.weight{slash}{entry}" if config.tied_embedding and name == "head.weight" else key


def local_chunk(tensor: Any) -> Chunk:
    """Returns the chunk of a DTensor that this rank has.

    FSDP cuts what tensor parallelism has cut, though its dimension of the mesh comes first: its placement
    is then a ``_StridedShard``. So plain shards go first; then the chunk is one run of rows.
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


def plan_save(plans: Sequence[SavePlan]) -> list[dict[Key, ShardMetadata]]:
    """Decides what each rank writes: every chunk of every tensor once, the bytes spread as evenly as can be.

    All ranks work this out from the same plans. Largest chunks first, each to the holder with the least.

    Args:
        plans: What each rank holds.
    """
    holders: dict[tuple[Key, Chunk], list[int]] = {}
    for rank, plan in enumerate(plans):
        for key, metadata in plan.items():
            if metadata.chunk.size:
                holders.setdefault((key, metadata.chunk), []).append(rank)
    writes: list[dict[Key, ShardMetadata]] = [{} for _ in plans]
    loads = [0] * len(plans)
    chunks = [(plans[ranks[0]][key], key, ranks) for (key, _), ranks in holders.items()]
    for metadata, key, ranks in sorted(
        chunks, key=lambda one: (-one[0].size_bytes, one[1], one[0].chunk.offset)
    ):
        rank = min(ranks, key=lambda rank: (loads[rank], rank))
        writes[rank][key] = metadata
        loads[rank] += metadata.size_bytes
    _require_whole(writes)
    return [{key: written[key] for key in sorted(written)} for written in writes]


def _require_whole(writes: Sequence[SavePlan]) -> None:
    """Our own invariant, for a checkpoint that lacks a chunk would be found out only when it is needed."""
    sizes: dict[Key, int] = {}
    shapes: dict[Key, tuple[int, ...]] = {}
    for written in writes:
        for key, metadata in written.items():
            sizes[key] = sizes.get(key, 0) + metadata.chunk.size
            assert shapes.setdefault(key, metadata.shape) == metadata.shape, f"ranks disagree on {key}"
    for key, size in sizes.items():
        assert size == math.prod(shapes[key]), f"the ranks' chunks of {key} are not the whole"
