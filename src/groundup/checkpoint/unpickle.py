"""Reads files of ``torch.save`` without running anything that they name.

A pickle says which functions to call. This reader knows the few that make a tensor and has its own
version of each; objects that Megatron-LM leaves in its ``args`` (enums, paths, random states) become
inert ``Stub``s; any other name refuses the file. Tensors are memory-mapped: reading a file costs
nothing until their values are used.
"""

import argparse
import collections
import contextlib
import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from groundup.core.errors import CheckpointError

Classes = Mapping[tuple[str, str], Callable[..., Any]]
"""Module and name in a pickle -> what is called in its place."""

_ZIP_BEGIN = b"PK\x03\x04"
_MAGIC = 0x1950A86A20F9469CFC6C  # of torch.save before version 1.6 (torch/serialization.py)
_ZIP_LOCAL_HEADER = struct.Struct("<26xHH")  # lengths of name and extra field (APPNOTE.TXT 4.3.7)
_STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "UntypedStorage": torch.uint8,
}
_CONTAINERS: Classes = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "deque"): collections.deque,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytearray"): bytearray,
    ("builtins", "complex"): complex,
    ("torch", "Size"): torch.Size,
}
# Whatever these modules name is not run and not imported: it becomes a Stub.
_INERT_MODULES = {
    *("_codecs", "datetime", "enum", "functools", "numpy", "pathlib", "signal", "torch", "types"),
    *("apex", "deepspeed", "megatron", "transformer_engine"),
}
_MALFORMED = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    EOFError,
    LookupError,
    ArithmeticError,
    MemoryError,  # of a size that a damaged file claims
    OSError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,  # torch's way to refuse shapes and strides
    struct.error,
)


class Stub:
    """An object of a class that is not known here: it remembers what it was made from and does nothing."""

    arguments: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.arguments = (*arguments, *named.values())

    def __setstate__(self, state: Any) -> None:
        """Keeps the state."""
        self.state = state

    def append(self, item: Any) -> None:
        """Takes an item and drops it."""

    def extend(self, items: Any) -> None:
        """Takes items and drops them."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Takes an entry and drops it."""

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}{self.arguments}"


class RestrictedUnpickler(pickle.Unpickler):
    """Unpickles tensors, containers and stubs.

    Args:
        file: The pickle.
        load_storage: Makes the bytes of a storage, of (key, dtype, number of elements).
        classes: Further classes that the pickle may make, by module and name.
    """

    def __init__(
        self,
        file: IO[bytes],
        load_storage: Callable[[str, torch.dtype, int], torch.UntypedStorage],
        classes: Classes | None = None,
    ) -> None:
        super().__init__(file, encoding="utf-8")
        self._load_storage = load_storage
        # Made anew for each file: what a pickle does to a class stays its own.
        self._found: dict[tuple[str, str], Any] = {
            **_CONTAINERS,
            ("argparse", "Namespace"): type("Namespace", (argparse.Namespace,), {}),
            ("torch._utils", "_rebuild_tensor"): self._tensor,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): self._parameter,
            **(classes or {}),
        }

    def find_class(self, module: str, name: str) -> Any:
        """What stands here for a name in the pickle."""
        module = "builtins" if module == "__builtin__" else module  # its name in pickles of protocol 2
        key = (module, name)
        if key not in self._found:
            self._found[key] = self._stand_in(module, name)
        return self._found[key]

    def persistent_load(self, pid: Any) -> Any:
        """A storage with its dtype."""
        kind, storage_type, key, _, num_elements = pid[:5]
        if kind != "storage" or not isinstance(storage_type, torch.dtype):
            raise pickle.UnpicklingError(f"unknown persistent id {kind!r}")
        return self._load_storage(str(key), storage_type, int(num_elements)), storage_type

    def _stand_in(self, module: str, name: str) -> Any:
        if module in {"torch", "torch.cuda", "torch.storage"} and name in _STORAGE_DTYPES:
            return _STORAGE_DTYPES[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module.partition(".")[0] in _INERT_MODULES:
            return type(name, (Stub,), {"__module__": module})
        raise _ForbiddenNameError(f"{module}.{name}")

    def _tensor(
        self, storage: Any, offset: int, shape: Sequence[int], stride: Sequence[int], *_: Any
    ) -> Tensor:
        untyped, dtype = storage
        last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        num_elements = untyped.nbytes() // dtype.itemsize
        if min(*shape, *stride, offset, 0) < 0 or (0 not in shape and last >= num_elements):
            raise pickle.UnpicklingError(f"a tensor of shape {tuple(shape)} exceeds its storage")
        return torch.empty(0, dtype=dtype).set_(untyped, offset, torch.Size(shape), tuple(stride))

    def _parameter(self, data: Tensor, *_: Any) -> Tensor:
        return data


class _ForbiddenNameError(Exception):
    """A pickle names a function or class that no checkpoint needs."""


def load_pickled(path: Path, classes: Classes | None = None) -> Any:
    """The content of a file of ``torch.save``, of any version; tensors on the CPU, memory-mapped.

    Raises:
        CheckpointError: Missing, damaged, or names something that a checkpoint does not need.
    """
    with _refusing(path), path.open("rb") as file:
        begin = file.read(4)
        file.seek(0)
        if begin == _ZIP_BEGIN:
            return _load_zip(file, _mapped(path), classes)
        return _load_stream(file, classes)


def load_pickled_part(path: Path, offset: int, length: int) -> Any:
    """The content of a zip file of ``torch.save`` that is a part of another file.

    Raises:
        CheckpointError: As ``load_pickled``.
    """
    with _refusing(path), path.open("rb") as file:
        file.seek(offset)
        content = bytearray(file.read(length))
        if len(content) < length:
            raise EOFError("the file ends early")
        storage = torch.frombuffer(content, dtype=torch.uint8).untyped_storage()
        return _load_zip(io.BytesIO(content), storage, None)


def load_plain_pickle(path: Path, classes: Classes) -> Any:
    """The content of a pickle without tensors that may make some classes.

    Raises:
        CheckpointError: As ``load_pickled``.
    """
    with _refusing(path), path.open("rb") as file:
        return RestrictedUnpickler(file, _no_storage, classes).load()


def storage_offsets(path: Path) -> dict[str, tuple[int, int]]:
    """Key of each storage of a zip file of ``torch.save`` -> its offset and length in bytes."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        return {
            info.filename.rpartition("/data/")[2]: (_offset(file, info), info.file_size)
            for info in archive.infolist()
            if "/data/" in info.filename
        }


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turns what goes wrong while a pickle is read into an error that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError("no such file", where=path, fix="Copy the checkpoint again, whole.") from None
    except IsADirectoryError:
        raise CheckpointError("is a folder, not a file of torch.save", where=path) from None
    except _ForbiddenNameError as error:
        raise CheckpointError(
            f"its pickle wants to call {error}, which no checkpoint needs; nothing of it was run",
            where=path,
            fix="Do not load this file with other tools: it may be malicious.",
        ) from None
    except _MALFORMED as error:
        raise CheckpointError(
            f"cannot be read as a file of torch.save ({type(error).__name__}: {error})",
            where=path,
            fix="Copy the file again; it may have been cut off.",
        ) from None


def _no_storage(key: str, *_: Any) -> torch.UntypedStorage:
    raise pickle.UnpicklingError(f"a tensor ({key}) where none is expected")


def _mapped(path: Path) -> torch.UntypedStorage:
    mapped: Any = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
    return mapped  # type: ignore[no-any-return]  # an UntypedStorage, says its documentation


def _load_zip(file: IO[bytes], content: torch.UntypedStorage, classes: Classes | None) -> Any:
    with zipfile.ZipFile(file) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in records:
            raise pickle.UnpicklingError("a zip file without data.pkl")
        if "byteorder" in records and archive.read(records["byteorder"]) != b"little":
            raise pickle.UnpicklingError("written on a big-endian machine")
        storages: dict[str, torch.UntypedStorage] = {}

        def load_storage(key: str, dtype: torch.dtype, num_elements: int) -> torch.UntypedStorage:
            if key not in storages:
                info = records[f"data/{key}"]
                offset, size = _offset(file, info), num_elements * dtype.itemsize
                if info.compress_type != zipfile.ZIP_STORED or not 0 <= size <= info.file_size:
                    raise pickle.UnpicklingError(f"storage {key} is compressed or too short")
                if offset + size > content.nbytes():
                    raise pickle.UnpicklingError("the file ends early")
                storages[key] = content[offset : offset + size]
            return storages[key]

        pickled = io.BytesIO(archive.read(records["data.pkl"]))
        return RestrictedUnpickler(pickled, load_storage, classes).load()


def _offset(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    file.seek(info.header_offset)
    name_length, extra_length = _ZIP_LOCAL_HEADER.unpack(file.read(_ZIP_LOCAL_HEADER.size))
    return int(info.header_offset + _ZIP_LOCAL_HEADER.size + name_length + extra_length)


def _load_stream(file: IO[bytes], classes: Classes | None) -> Any:
    """The form before torch 1.6: pickles one after another, then each storage's length and bytes."""
    storages: dict[str, tuple[torch.UntypedStorage, torch.dtype]] = {}

    def load_storage(key: str, dtype: torch.dtype, num_elements: int) -> torch.UntypedStorage:
        if key not in storages:
            storages[key] = torch.UntypedStorage(num_elements * dtype.itemsize), dtype
        return storages[key][0]

    def load() -> Any:
        return RestrictedUnpickler(file, load_storage, classes).load()

    if load() != _MAGIC:
        raise pickle.UnpicklingError("not made by torch.save")
    load()  # version of the protocol
    load()  # about the machine
    content = load()
    for key in load():
        storage, dtype = storages[key]
        [num_elements] = struct.unpack("<q", file.read(8))
        view = torch.empty(0, dtype=torch.uint8).set_(storage)
        content_bytes = file.read(view.numel())
        if num_elements * dtype.itemsize != view.numel() or len(content_bytes) != view.numel():
            raise EOFError("a storage ends early")
        if content_bytes:
            view.copy_(torch.frombuffer(bytearray(content_bytes), dtype=torch.uint8))
    return content
