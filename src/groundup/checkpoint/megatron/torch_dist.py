"""Megatron-LM's ``torch_dist`` format: whole tensors in pieces, as ``torch.distributed.checkpoint`` writes.

A folder holds ``.metadata`` (a pickle: which piece lies where), ``__{rank}_{number}.distcp`` (pieces, each
as ``torch.save`` makes it) and ``common.pt`` (args, iteration). Tensors have no trace of tensor or pipeline
parallelism; those of the layers may be stacked along a first axis. Only the model is read.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LazyTensor
from groundup.checkpoint.megatron.args import args_in, require_number
from groundup.checkpoint.megatron.parameters import canonical_name
from groundup.checkpoint.safe_pickle.objects import Stub
from groundup.checkpoint.safe_pickle.unpickle import load_pickled, load_pickled_part, load_plain_pickle
from groundup.core.errors import CheckpointError

METADATA = ".metadata"
COMMON = "common.pt"
_OTHERS = ("optimizer.", "chained_", "rng_state", "rerun_state", "opt_param_scheduler")
_LONGEST = 400
_STACKED = re.compile(r"decoder\.layers\.(?=\D)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedCheckpoint:
    """A folder's args, all that ``common.pt`` holds, and the model's tensors by canonical names."""

    args: Mapping[str, Any]
    content: Mapping[str, Any]
    tensors: Mapping[str, LazyTensor]


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
    args = args_in(common, folder / COMMON) if isinstance(common, dict) else {}
    if not args:
        raise CheckpointError("has no args, without which the model is not known", where=folder / COMMON)
    require_number(common, "iteration", folder / COMMON)
    metadata = load_plain_pickle(folder / METADATA)
    try:
        tensors = dict(_tensors(_fields(metadata), folder))
    except (KeyError, TypeError, AttributeError, ValueError, StopIteration, RuntimeError) as error:
        raise CheckpointError(
            f"is not as torch.distributed.checkpoint writes it ({type(error).__name__}: {error})",
            where=folder / METADATA,
        ) from None
    return DistributedCheckpoint(args=args, content=common, tensors=tensors)


def _tensors(metadata: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, LazyTensor]]:
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
        pieces = [
            _piece(chunk, places[key, tuple(chunk["offsets"])], folder)
            for chunk in map(_fields, fields["chunks"])
        ]
        _require_fits(key, shape, dtype, pieces, folder / METADATA)
        name = key.removeprefix("model.")
        if not _STACKED.match(name):
            read = functools.partial(_read, key, shape, dtype, pieces)
            yield canonical_name(name), LazyTensor(shape=shape, dtype=dtype, read=read)
            continue
        for layer in range(shape[0]):
            unstacked = _STACKED.sub(f"decoder.layers.{layer}.", name)
            read = functools.partial(_read_layer, key, shape, dtype, pieces, layer)
            yield canonical_name(unstacked), LazyTensor(shape=shape[1:], dtype=dtype, read=read)


def _piece(chunk: Mapping[str, Any], place: Mapping[str, Any], folder: Path) -> _Piece:
    path = folder / Path(place["relative_path"]).name
    if place.get("transform_descriptors"):
        raise CheckpointError("a tensor is stored in compressed form, which is not supported", where=path)
    if not path.is_file():
        raise CheckpointError("no such file, though .metadata names it", where=path)
    return _Piece(
        offsets=tuple(chunk["offsets"]),
        sizes=tuple(chunk["sizes"]),
        path=path,
        begin=place["offset"],
        length=place["length"],
    )


def _require_fits(
    key: str, shape: tuple[int, ...], dtype: torch.dtype, pieces: Sequence[_Piece], where: Path
) -> None:
    """Refuses pieces outside of their tensor, and a tensor of more values than their files can hold."""
    numbers = [
        *shape,
        *(n for piece in pieces for n in (*piece.offsets, *piece.sizes, piece.begin, piece.length)),
    ]
    inside = all(type(number) is int and number >= 0 for number in numbers) and all(
        len(piece.offsets) == len(piece.sizes) == len(shape)
        and all(o + n <= size for o, n, size in zip(piece.offsets, piece.sizes, shape, strict=True))
        for piece in pieces
    )
    held = sum(min(piece.length, piece.path.stat().st_size) for piece in pieces) if inside else 0
    if not inside or math.prod(shape) * dtype.itemsize > held:
        raise CheckpointError(
            f"the pieces of {key} do not make a tensor of shape {shape}"[:_LONGEST], where=where
        )


def _read(key: str, shape: tuple[int, ...], dtype: torch.dtype, pieces: Sequence[_Piece]) -> Tensor:
    """A whole tensor of its pieces."""
    whole = torch.empty(shape, dtype=dtype)
    filled = torch.zeros(shape, dtype=torch.bool)
    for piece in pieces:
        _put(key, _read_piece(key, piece, dtype), piece.offsets, whole, filled, piece.path)
    return _complete(key, whole, filled, pieces)


def _read_layer(
    key: str, shape: tuple[int, ...], dtype: torch.dtype, pieces: Sequence[_Piece], layer: int
) -> Tensor:
    """One layer of a stacked tensor, of those pieces that have a part of it."""
    whole = torch.empty(shape[1:], dtype=dtype)
    filled = torch.zeros(shape[1:], dtype=torch.bool)
    for piece in pieces:
        if piece.offsets[0] <= layer < piece.offsets[0] + piece.sizes[0]:
            part = _read_piece(key, piece, dtype)[layer - piece.offsets[0]]
            _put(key, part, piece.offsets[1:], whole, filled, piece.path)
    return _complete(f"layer {layer} of {key}", whole, filled, pieces)


def _read_piece(key: str, piece: _Piece, dtype: torch.dtype) -> Tensor:
    tensor = load_pickled_part(piece.path, piece.begin, piece.length)
    if not isinstance(tensor, Tensor) or (tuple(tensor.shape), tensor.dtype) != (piece.sizes, dtype):
        raise CheckpointError(f"a piece of {key} is not what .metadata says", where=piece.path)
    return tensor


def _put(key: str, part: Tensor, offsets: Sequence[int], whole: Tensor, filled: Tensor, where: Path) -> None:
    place = tuple(slice(offset, offset + size) for offset, size in zip(offsets, part.shape, strict=True))
    if filled[place].any():
        raise CheckpointError(f"two pieces of {key} overlap", where=where)
    whole[place] = part
    filled[place] = True


def _complete(what: str, whole: Tensor, filled: Tensor, pieces: Sequence[_Piece]) -> Tensor:
    """The tensor, if pieces have filled all of it: what they did not is memory that was used before."""
    if not filled.all():
        raise CheckpointError(
            f"{int(filled.sum()):,} of the {whole.numel():,} values of {what} are there",
            where=pieces[0].path.parent,
        )
    return whole


def _fields(thing: Any) -> Mapping[str, Any]:
    """The attributes of a dataclass that became a stub."""
    state = thing.state if isinstance(thing, Stub) else None
    if not isinstance(state, dict):
        raise TypeError(f"found {thing!r}")
    return state


def _values(thing: Any) -> Sequence[Any]:
    state = thing.state
    return tuple(state.values()) if isinstance(state, dict) else tuple(state)
