"""Reads and writes safetensors files tensor by tensor; the library's own writer wants them all at once."""

import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from groundup.checkpoint.lazy import LazyTensor
from groundup.core.errors import CheckpointError

_ALIGNMENT = 8
_PIECE_BYTES = 1 << 20
_FLUSH_BYTES = 64 << 20
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_safetensors(
    path: Path,
    tensors: Mapping[str, LazyTensor],
    *,
    on_write: Callable[[int], None] | None = None,
) -> str:
    """Writes tensors in the order given; the memory needed is that of the largest of them.

    The format: length of the header (uint64), header (JSON: dtype, shape and offsets by name), values
    (https://huggingface.co/docs/safetensors, "Format").

    Args:
        path: The file.
        tensors: What to write.
        on_write: Receives the bytes of each tensor when it is written.

    Returns:
        The checksum of the file, as ``core.files.checksum`` computes it.
    """
    digest = xxhash.xxh3_128()
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.size_bytes
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb", buffering=0) as file, _Flusher(file.fileno()) as flusher:

        def write(content: bytes | memoryview) -> None:
            for begin in range(0, len(content), _PIECE_BYTES):  # hashed while it is in the processor's cache
                piece = memoryview(content)[begin : begin + _PIECE_BYTES]
                digest.update(piece)
                flusher.add(len(piece))
                while piece:  # an unbuffered file may take less than it is given
                    piece = piece[file.write(piece) :]

        write(struct.pack("<Q", len(text)))
        write(text)
        for name, stored in tensors.items():
            values = stored.read()
            assert (tuple(values.shape), values.dtype) == (stored.shape, stored.dtype), name
            write(bytes_of(values))
            if on_write:
                on_write(stored.size_bytes)
    return f"xxh3:{digest.hexdigest()}"


class _Flusher:
    """Flushes a file to the disk while it is being written, so that less is left to wait for at its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._thread = ThreadPoolExecutor(1, "flush")
        self._flush: Future[None] | None = None
        self._waiting_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)
        if self._flush:
            self._flush.result()  # or what the disk says

    def add(self, num_bytes: int) -> None:
        """Counts what is written, and begins a flush when there is enough."""
        self._waiting_bytes += num_bytes
        if self._waiting_bytes >= _FLUSH_BYTES and (self._flush is None or self._flush.done()):
            if self._flush:
                self._flush.result()
            self._waiting_bytes = 0
            self._flush = self._thread.submit(os.fsync, self._descriptor)


def read_safetensors(path: Path) -> dict[str, LazyTensor]:
    """Opens the tensors of a file, memory-mapped.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: _stored(file, name, path) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (OSError, SafetensorError, KeyError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"cannot be read as safetensors ({error})", where=path, fix="Copy the file again.")


def read_header(path: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...], int]]:
    """Reads each tensor's name -> dtype, shape and the offset of its values in the file.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            size_bytes = path.stat().st_size - 8 - length
            if size_bytes < 0:
                raise ValueError(f"a header of {length:,} bytes")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 0
        for entry in sorted(header.values(), key=lambda entry: tuple(entry["data_offsets"])):
            end = _end_of(entry, end)
        if end != size_bytes:
            raise ValueError(f"{size_bytes:,} bytes of values, where the header tells of {end:,}")
        return {
            name: (DTYPES[entry["dtype"]], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
            for name, entry in header.items()
        }
    except (
        OSError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        RecursionError,  # of JSON that is nested deeply
        struct.error,
    ) as error:
        raise _unreadable(path, error) from None


def _end_of(entry: Mapping[str, Any], begin: int) -> int:
    """Returns where a tensor ends that must begin at ``begin``: the format allows no gaps and no overlaps."""
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, *offsets)):
        raise ValueError(f"a tensor of shape {shape} at {offsets}")
    end: int = begin + math.prod(shape) * DTYPES[entry["dtype"]].itemsize
    if offsets != [begin, end]:
        raise ValueError(f"a tensor of shape {shape} at {offsets}, where {[begin, end]} was expected")
    return end


def bytes_of(tensor: Tensor) -> memoryview:
    """Returns the values of a tensor on the CPU as bytes, in row-major order."""
    values: Any = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(values)


def _stored(file: safe_open, name: str, path: Path) -> LazyTensor:
    part = file.get_slice(name)

    def read() -> Tensor:
        try:
            with safe_open(path, framework="pt") as again:  # mapped for as long as this tensor is used
                tensor: Tensor = again.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, error) from None
        return tensor

    return LazyTensor(shape=tuple(part.get_shape()), dtype=DTYPES[part.get_dtype()], read=read)
