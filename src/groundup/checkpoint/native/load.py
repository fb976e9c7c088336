"""The tensors of a checkpoint by group (model, optimizer, ...), read from wherever their parts lie.

One process alone writes each group into one file, ``model.safetensors``. Several write one each,
``model-00002-of-00004.safetensors``, and ``parts.json`` says which box of which tensor lies where.
Values are read from the file straight to where they belong: nothing is mapped to memory, where it
would count twice.
"""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LazyTensor
from groundup.checkpoint.native.contents import PARTS, read_manifest, read_parts, weight_groups
from groundup.checkpoint.native.shards import Chunk, Part, ShardMetadata, local_shard_of
from groundup.checkpoint.safetensors import DTYPES, bytes_of, read_header
from groundup.core.errors import CheckpointError
from groundup.core.files import write_json
from groundup.models import ModelConfig

_BUFFER_BYTES = 8 << 20
_READERS = 4
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class ChunkLocation:
    """A box of a tensor in a file."""

    file: Path
    box: Chunk


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a checkpoint: dtype, logical shape, and its parts."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[ChunkLocation, ...]


class Group(Mapping[str, Entry]):
    """The tensors of one group of a checkpoint by name.

    Raises:
        CheckpointError: A file is missing or damaged.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._entries = _entries(folder, name)
        self._headers: dict[Path, dict[str, tuple[torch.dtype, tuple[int, ...], int]]] = {}

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Of all values."""
        return sum(torch.Size(entry.shape).numel() * entry.dtype.itemsize for entry in self.values())

    def read_into(self, name: str, box: Chunk, values: Tensor) -> None:
        """Reads a box of a tensor to where its values belong, on whatever device and of whatever dtype.

        Raises:
            CheckpointError: The tensor's parts in the files are damaged or not all there.
        """
        covered = 0
        for part in self[name].parts:
            common = box.overlap(part.box)
            if common is not None:
                self._copy(name, part, common, common.of(values, box))
                covered += common.size
        if covered != box.size:
            raise CheckpointError(
                f"has {covered:,} of {box.size:,} values of {name}", where=self.folder, fix="Copy it again."
            )

    def read(self, name: str) -> Tensor:
        """A whole tensor, on the CPU."""
        entry = self[name]
        values = torch.empty(entry.shape, dtype=entry.dtype)
        self.read_into(name, Chunk((0,) * len(entry.shape), entry.shape), values)
        return values

    def stored(self) -> dict[str, LazyTensor]:
        """The tensors as what is read when it is asked for."""
        return {
            name: LazyTensor(shape=entry.shape, dtype=entry.dtype, read=functools.partial(self.read, name))
            for name, entry in self.items()
        }

    def _copy(self, name: str, part: ChunkLocation, box: Chunk, values: Tensor) -> None:
        if part.file not in self._headers:
            self._headers[part.file] = read_header(part.file)
        dtype, shape, begin = self._headers[part.file].get(name, (None, (), 0))
        if dtype is None or shape != part.box.shape:
            raise CheckpointError(f"does not hold {name} as {PARTS} says", where=part.file)
        if not shape:
            values, shape, box, holder = values.reshape(1), (1,), Chunk((0,), (1,)), Chunk((0,), (1,))
        else:
            holder = part.box
        row_bytes = torch.Size(shape[1:]).numel() * dtype.itemsize
        begin += (box.offset[0] - holder.offset[0]) * row_bytes
        whole_rows = box.shape[1:] == shape[1:]
        with part.file.open("rb", buffering=0) as file:
            if (
                whole_rows
                and values.device.type == "cpu"
                and values.dtype == dtype
                and values.is_contiguous()
            ):
                _read(file.fileno(), begin, bytes_of(values), part.file)
                return
            rows_at_once = max(1, min(_BUFFER_BYTES // max(1, row_bytes), box.shape[0]))
            buffer = torch.empty((rows_at_once, *shape[1:]), dtype=dtype)
            for first in range(0, box.shape[0], rows_at_once):
                rows = min(rows_at_once, box.shape[0] - first)
                _read(file.fileno(), begin + first * row_bytes, bytes_of(buffer[:rows]), part.file)
                piece = buffer[:rows]
                for dim in range(1, len(shape)):
                    piece = piece.narrow(dim, box.offset[dim] - holder.offset[dim], box.shape[dim])
                values[first : first + rows].copy_(piece)


def load_into(group: Group, tensors: Iterable[tuple[str, Tensor]], config: ModelConfig) -> None:
    """Reads this rank's parts of tensors to where they belong; rows of padded vocabulary ids become 0.

    Args:
        group: Of a checkpoint.
        tensors: Name in the group, and the parameter or moment: whole, spread over ranks, or a scalar.
        config: Of the model.

    Raises:
        CheckpointError: Tensors are missing, of another shape, or damaged; lists them.
    """
    parts = [(name, local_shard_of(name, tensor, config)) for name, tensor in tensors]
    problems = [f"{name} is missing" for name, _ in parts if name not in group]
    problems += [
        f"{name} has shape {group[name].shape}, expected {part.held.shape}"
        for name, part in parts
        if name in group and group[name].shape != part.held.shape
    ]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise CheckpointError(
            f"does not fit the {group.name}: {'; '.join(sorted(problems)[:8])}{more}", where=group.folder
        )

    def fill(name: str, part: Part) -> None:
        part.padding.zero_()
        if part.held.box.size:
            group.read_into(name, part.held.box, part.values)

    with ThreadPoolExecutor(_READERS) as readers:  # one alone keeps neither the disk nor the memory busy
        for done in [readers.submit(fill, name, part) for name, part in parts]:
            done.result()


def file_name(group: str, rank: int, num_ranks: int) -> str:
    """The file that a rank writes of a group."""
    return (
        f"{group}.safetensors" if num_ranks == 1 else f"{group}-{rank + 1:05}-of-{num_ranks:05}.safetensors"
    )


def group_names(folder: Path) -> list[str]:
    """The groups that a checkpoint has.

    Raises:
        CheckpointError: Its manifest or ``parts.json`` is malformed.
    """
    files = read_manifest(folder).files
    parts = read_parts(folder, files)
    return sorted(weight_groups(files) if parts is None else parts)


def write_parts(
    folder: Path, names: Iterable[str], shares: Sequence[Mapping[tuple[str, str], ShardMetadata]]
) -> None:
    """Writes ``parts.json``: the groups, and what each rank has written of them."""
    groups: dict[str, dict[str, Any]] = {name: {} for name in names}
    for rank, share in enumerate(shares):
        for (group, name), held in share.items():
            entry = groups[group].setdefault(
                name, {"dtype": _NAMES[held.dtype], "shape": list(held.shape), "parts": []}
            )
            entry["parts"].append(
                [file_name(group, rank, len(shares)), list(held.box.offset), list(held.box.shape)]
            )
    write_json(folder / PARTS, groups, indent=None)


def _entries(folder: Path, group: str) -> dict[str, Entry]:
    files = read_manifest(folder).files
    groups = read_parts(folder, files)
    known = sorted(weight_groups(files) if groups is None else groups)
    if group not in known:
        raise CheckpointError(f"holds no {group}, only {', '.join(known)}", where=folder)
    if groups is None:
        file = folder / file_name(group, 0, 1)
        return {
            name: Entry(dtype, shape, (ChunkLocation(file, Chunk((0,) * len(shape), shape)),))
            for name, (dtype, shape, _) in read_header(file).items()
        }
    try:
        return {name: _entry(folder, entry) for name, entry in groups[group].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"describes a tensor wrongly ({error!r})", where=folder / PARTS) from None


def _entry(folder: Path, entry: Mapping[str, Any]) -> Entry:
    shape = tuple(map(int, entry["shape"]))
    parts = []
    for file, offset, part_shape in entry["parts"]:
        box = Chunk(tuple(map(int, offset)), tuple(map(int, part_shape)))
        ends = [begin + length for begin, length in zip(box.offset, box.shape, strict=True)]
        inside = zip(box.offset, box.shape, ends, shape, strict=True)
        if not all(begin >= 0 and length >= 0 and end <= limit for begin, length, end, limit in inside):
            raise ValueError(f"{box} lies outside of the shape {shape}")
        parts.append(ChunkLocation(folder / file, box))
    return Entry(DTYPES[entry["dtype"]], shape, tuple(parts))


def _read(descriptor: int, offset: int, target: memoryview, path: Path) -> None:
    """Fills a memory with a run of bytes of a file."""
    while target:
        size = os.preadv(descriptor, [target], offset)
        if size == 0:
            raise CheckpointError("ends early: truncated", where=path, fix="Copy the file again.")
        target, offset = target[size:], offset + size
