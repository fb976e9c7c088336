"""Megatron-LM's ``torch_dist`` format: whole tensors in pieces, as ``torch.distributed.checkpoint`` writes.

A folder holds ``.metadata`` (a pickle: which piece lies where), ``__{rank}_{number}.distcp`` (pieces, each
as ``torch.save`` makes it) and ``common.pt`` (args, iteration). Tensors have no trace of tensor or pipeline
parallelism; those of the layers may be stacked along a first axis. Only the model is read.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.megatron.names import canonical_name
from groundup.checkpoint.pickle_objects import Stub
from groundup.checkpoint.stored import StoredTensor
from groundup.checkpoint.unpickle import load_pickled, load_pickled_part, load_plain_pickle
from groundup.core.errors import CheckpointError

METADATA = ".metadata"
COMMON = "common.pt"
_OTHERS = ("optimizer.", "chained_", "rng_state", "rerun_state", "opt_param_scheduler")
_STACKED = re.compile(r"decoder\.layers\.(?=\D)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedCheckpoint:
    """What a folder holds.

    Attributes:
        args: The command line that it was made with.
        content: All of ``common.pt``.
        tensors: Of the model by canonical names.
    """

    args: Mapping[str, Any]
    content: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Piece:
    """A part of a whole tensor: its place, and where it lies in a file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: Path
    begin: int
    length: int


def open_distributed(folder: Path) -> DistributedCheckpoint:
    """Opens a folder of the ``torch_dist`` format.

    Raises:
        CheckpointError: Files are missing or damaged, or of a form that is not known.
    """
    common = load_pickled(folder / COMMON)
    args = common.get("args") if isinstance(common, dict) else None
    if not hasattr(args, "__dict__"):
        raise CheckpointError("has no args, without which the model is not known", where=folder / COMMON)
    metadata = load_plain_pickle(folder / METADATA)
    try:
        tensors = dict(_tensors(_fields(metadata), folder))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(
            f"is not as torch.distributed.checkpoint writes it ({type(error).__name__}: {error})",
            where=folder / METADATA,
        ) from None
    return DistributedCheckpoint(args=vars(args), content=common, tensors=tensors)


def _tensors(metadata: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, StoredTensor]]:
    places: dict[tuple[str, tuple[int, ...]], Mapping[str, Any]] = {}
    for index, info in metadata["storage_data"].items():
        key = _fields(index)
        if key["offset"] is not None:  # it is a tensor's
            places[key["fqn"], tuple(key["offset"])] = _fields(info)
    for key, described in metadata["state_dict_metadata"].items():
        fields = _fields(described)
        if "chunks" not in fields or key.startswith(_OTHERS):  # bytes, or no part of the model
            continue
        shape = tuple(fields["size"])
        dtype = next(value for value in _values(fields["properties"]) if isinstance(value, torch.dtype))
        pieces = []
        for chunk in map(_fields, fields["chunks"]):
            place = places[key, tuple(chunk["offsets"])]
            if place.get("transform_descriptors"):
                raise CheckpointError(
                    f"{key} is stored in compressed form, which is not supported", where=folder
                )
            piece = _Piece(
                offsets=tuple(chunk["offsets"]),
                sizes=tuple(chunk["sizes"]),
                path=folder / Path(place["relative_path"]).name,
                begin=place["offset"],
                length=place["length"],
            )
            if not piece.path.is_file():
                raise CheckpointError("no such file, though .metadata names it", where=piece.path)
            pieces.append(piece)
        name = key.removeprefix("model.")
        if not _STACKED.match(name):
            read = functools.partial(_read, key, shape, dtype, pieces)
            yield canonical_name(name), StoredTensor(shape=shape, dtype=dtype, read=read)
            continue
        for layer in range(shape[0]):
            unstacked = _STACKED.sub(f"decoder.layers.{layer}.", name)
            read = functools.partial(_read_layer, key, shape, dtype, pieces, layer)
            yield canonical_name(unstacked), StoredTensor(shape=shape[1:], dtype=dtype, read=read)


def _read(key: str, shape: tuple[int, ...], dtype: torch.dtype, pieces: Sequence[_Piece]) -> Tensor:
    """A whole tensor of its pieces."""
    whole = torch.empty(shape, dtype=dtype)
    filled = 0
    for piece in pieces:
        tensor = load_pickled_part(piece.path, piece.begin, piece.length)
        place = tuple(
            slice(offset, offset + size) for offset, size in zip(piece.offsets, piece.sizes, strict=True)
        )
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != piece.sizes:
            raise CheckpointError(f"a piece of {key} is not what .metadata says", where=piece.path)
        whole[place] = tensor
        filled += tensor.numel()
    if filled != whole.numel():
        raise CheckpointError(
            f"{filled:,} of the {whole.numel():,} values of {key} are there", where=pieces[0].path.parent
        )
    return whole


def _read_layer(
    key: str, shape: tuple[int, ...], dtype: torch.dtype, pieces: Sequence[_Piece], layer: int
) -> Tensor:
    """One layer of a stacked tensor, of those pieces that have a part of it."""
    own = [piece for piece in pieces if piece.offsets[0] <= layer < piece.offsets[0] + piece.sizes[0]]
    if not own:
        raise CheckpointError(f"layer {layer} of {key} is not there", where=pieces[0].path.parent)
    first = own[0].offsets[0]
    moved = [
        dataclasses.replace(piece, offsets=(piece.offsets[0] - first, *piece.offsets[1:])) for piece in own
    ]
    return _read(key, (own[0].sizes[0], *shape[1:]), dtype, moved)[layer - first]


def _fields(thing: Any) -> Mapping[str, Any]:
    """The attributes of a dataclass that became a stub."""
    state = thing.state if isinstance(thing, Stub) else None
    if not isinstance(state, dict):
        raise TypeError(f"found {thing!r}")
    return state


def _values(thing: Any) -> Sequence[Any]:
    state = thing.state
    return tuple(state.values()) if isinstance(state, dict) else tuple(state)
