"""Reads the tensors of a checkpoint, group by group (model, optimizer, ...), wherever their chunks lie.

Values are read from the file straight to where they belong: nothing is mapped to memory, where it would
count twice.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LazyTensor
from groundup.checkpoint.logical_tensors import find_mismatch
from groundup.checkpoint.native.contents import CHUNKS, file_name, read_groups
from groundup.checkpoint.native.shards import (
    Chunk,
    ChunkLocation,
    LocalShard,
    TensorMetadata,
    local_shard_of,
    whole_chunk,
)
from groundup.checkpoint.safetensors import bytes_of, read_header
from groundup.core.errors import CheckpointError
from groundup.models import ModelConfig

_BUFFER_BYTES = 8 << 20
_READERS = 4


class TensorGroup(Mapping[str, TensorMetadata]):
    """The tensors of one group of a checkpoint by name.

    Raises:
        CheckpointError: The checkpoint has no such group, or a file is missing or damaged.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        if name not in (groups := read_groups(folder)):
            raise CheckpointError(f"holds no {name}, only {', '.join(sorted(groups))}", where=folder)
        tensors = groups[name]
        self._tensors = _in_one_file(folder / file_name(name, 0, 1)) if tensors is None else tensors
        self._headers: dict[Path, dict[str, tuple[torch.dtype, tuple[int, ...], int]]] = {}

    def __getitem__(self, name: str) -> TensorMetadata:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all values."""
        return sum(torch.Size(one.shape).numel() * one.dtype.itemsize for one in self.values())

    def read_into(self, name: str, chunk: Chunk, values: Tensor) -> None:
        """Reads a chunk of a tensor to where its values belong, on whatever device and of whatever dtype.

        Raises:
            CheckpointError: The files are damaged.
        """
        for location in self[name].chunks:
            common = chunk.overlap(location.chunk)
            if common is not None:
                self._copy(name, location, common, common.of(values, chunk))

    def read(self, name: str) -> Tensor:
        """Reads a whole tensor, to the CPU."""
        values = torch.empty(self[name].shape, dtype=self[name].dtype)
        self.read_into(name, whole_chunk(values.shape), values)
        return values

    def lazy(self) -> dict[str, LazyTensor]:
        """Returns the tensors as lazy ones."""
        return {
            name: LazyTensor(shape=one.shape, dtype=one.dtype, read=_Reader(self, name))
            for name, one in self.items()
        }

    def _copy(self, name: str, location: ChunkLocation, chunk: Chunk, values: Tensor) -> None:
        if location.file not in self._headers:
            self._headers[location.file] = read_header(location.file)
        dtype, shape, begin = self._headers[location.file].get(name, (None, (), 0))
        if dtype is None or shape != location.chunk.shape:
            raise CheckpointError(f"does not hold {name} as {CHUNKS} says", where=location.file)
        holder = location.chunk
        if not shape:
            values, shape, chunk, holder = values.reshape(1), (1,), Chunk((0,), (1,)), Chunk((0,), (1,))
        row_bytes = torch.Size(shape[1:]).numel() * dtype.itemsize
        begin += (chunk.offset[0] - holder.offset[0]) * row_bytes
        as_in_file = chunk.shape[1:] == shape[1:] and values.dtype == dtype
        with location.file.open("rb", buffering=0) as file:
            if as_in_file and values.device.type == "cpu" and values.is_contiguous():
                _read(file.fileno(), begin, bytes_of(values), location.file)
                return
            rows_at_once = max(1, min(_BUFFER_BYTES // max(1, row_bytes), chunk.shape[0]))
            buffer = torch.empty((rows_at_once, *shape[1:]), dtype=dtype)
            for first in range(0, chunk.shape[0], rows_at_once):
                rows = buffer[: chunk.shape[0] - first]
                _read(file.fileno(), begin + first * row_bytes, bytes_of(rows), location.file)
                columns = rows
                for dim in range(1, len(shape)):
                    columns = columns.narrow(dim, chunk.offset[dim] - holder.offset[dim], chunk.shape[dim])
                values[first : first + len(rows)].copy_(columns)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads one tensor of a group, or a part of it."""

    group: TensorGroup
    name: str

    def __call__(self) -> Tensor:
        return self.group.read(self.name)

    def part(self, offset: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        values = torch.empty(shape, dtype=self.group[self.name].dtype)
        self.group.read_into(self.name, Chunk(offset, shape), values)
        return values


def load_into(group: TensorGroup, tensors: Iterable[tuple[str, Tensor]], config: ModelConfig) -> None:
    """Reads this rank's shards of tensors to where they belong; rows of padded vocabulary ids become 0.

    Args:
        group: Of a checkpoint; may have more tensors.
        tensors: Name in the group, and the parameter or moment: whole, a DTensor, or a scalar.
        config: Of the model.

    Raises:
        CheckpointError: Tensors are missing, of another shape, or damaged; lists them.
    """
    shards = [(name, local_shard_of(name, tensor, config)) for name, tensor in tensors]
    expected = {name: shard.metadata.shape for name, shard in shards}
    found = {name: one.shape for name, one in group.items() if name in expected}
    if mismatch := find_mismatch(expected, found):
        raise CheckpointError(f"does not fit the {group.name}: {mismatch}", where=group.folder)

    def fill(name: str, shard: LocalShard) -> None:
        shard.padding.zero_()
        if shard.metadata.chunk.size:
            group.read_into(name, shard.metadata.chunk, shard.values)

    with ThreadPoolExecutor(_READERS) as readers:  # one alone keeps neither the disk nor the memory busy
        for done in [readers.submit(fill, name, shard) for name, shard in shards]:
            done.result()


def _in_one_file(file: Path) -> dict[str, TensorMetadata]:
    return {
        name: TensorMetadata(dtype, shape, (ChunkLocation(file, whole_chunk(shape)),))
        for name, (dtype, shape, _) in read_header(file).items()
    }


def _read(descriptor: int, offset: int, target: memoryview, path: Path) -> None:
    """Fills a memory with a run of bytes of a file."""
    while target:
        size = os.preadv(descriptor, [target], offset)
        if size == 0:
            raise CheckpointError("ends early: truncated", where=path, fix="Copy the file again.")
        target, offset = target[size:], offset + size
