"""Reads files of ``torch.save`` without executing any code that they name.

``machine`` interprets the pickle; only when all of it is read its tensors get their values, each
within the bytes that the file has for its storage. In files since torch 1.6 they are memory-mapped: reading
costs nothing until values are used. Why not ``torch.load``: docs/decisions/004-own-unpickler.md.
"""

import contextlib
import io
import mmap
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from groundup.checkpoint.safe_pickle.machine import read_pickle
from groundup.checkpoint.safe_pickle.objects import ForbiddenNameError, StorageInPickle
from groundup.checkpoint.safe_pickle.tensors import with_tensors
from groundup.core.errors import CheckpointError

_ZIP_BEGIN = b"PK\x03\x04"
_MAGIC = 0x1950A86A20F9469CFC6C  # of torch.save before version 1.6 (torch/serialization.py)
_ZIP_LOCAL_HEADER = struct.Struct("<26xHH")  # lengths of name and extra field (APPNOTE.TXT 4.3.7)
_ENCRYPTED = 1  # the flag in a zip file's directory
_MALFORMED = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    EOFError,
    LookupError,
    ArithmeticError,
    MemoryError,
    OSError,
    TypeError,
    ValueError,
    RecursionError,
    NotImplementedError,  # zipfile's, of versions that it does not know
    struct.error,
)


def load_pickled(path: Path) -> Any:
    """Reads a file of ``torch.save``, of any version; tensors on the CPU.

    Raises:
        CheckpointError: Missing, damaged, or names something that a checkpoint does not need.
    """
    with _refusing(path), path.open("rb") as file:
        begin = file.read(4)
        file.seek(0)
        if begin == _ZIP_BEGIN:
            return _load_zip(file, _mapped(path))
        return _load_stream(file)


def load_pickled_part(path: Path, offset: int, length: int) -> Any:
    """Reads a zip file of ``torch.save`` that is a part of another file.

    Raises:
        CheckpointError: As ``load_pickled``.
    """
    with _refusing(path), path.open("rb") as file:
        if not 0 <= offset <= offset + length <= path.stat().st_size:
            raise EOFError("the file ends early")
        file.seek(offset)
        content = bytearray(file.read(length))
        storage = torch.frombuffer(content, dtype=torch.uint8).untyped_storage()
        return _load_zip(io.BytesIO(content), storage)


def load_plain_pickle(path: Path) -> Any:
    """Reads a pickle without tensors.

    Raises:
        CheckpointError: As ``load_pickled``.
    """
    with _refusing(path):
        content = path.read_bytes()
        return with_tensors(read_pickle(io.BytesIO(content)), _no_storage, len(content))


def storage_offsets(path: Path) -> dict[str, tuple[int, int]]:
    """Finds each storage of a zip file of ``torch.save``: key -> its offset and length in bytes."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        return {
            info.filename.rpartition("/data/")[2]: (_offset(file, info), info.file_size)
            for info in archive.infolist()
            if "/data/" in info.filename
        }


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turns any error while reading a pickle into one that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError("no such file", where=path, fix="Copy the checkpoint again, whole.") from None
    except IsADirectoryError:
        raise CheckpointError("is a folder, not a file of torch.save", where=path) from None
    except ForbiddenNameError as error:
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


def _no_storage(storage: StorageInPickle) -> torch.UntypedStorage:
    raise pickle.UnpicklingError(f"a tensor ({storage.key}) where none is expected")


def _mapped(path: Path) -> torch.UntypedStorage:
    mapped: Any = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
    return mapped  # type: ignore[no-any-return]  # an UntypedStorage, says its documentation


def _load_zip(file: IO[bytes], content: torch.UntypedStorage) -> Any:
    with zipfile.ZipFile(file) as archive:  # only its directory is used: nothing is unpacked
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}

    def place(name: str) -> tuple[int, int]:
        if name not in records:
            raise pickle.UnpicklingError(f"a zip file without {name}")
        info = records[name]
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
            raise pickle.UnpicklingError(f"{name} is compressed or encrypted, which torch.save never does")
        offset = _offset(file, info)
        if not offset <= offset + info.file_size <= content.nbytes():
            raise EOFError(f"the file ends before {name} does")
        return offset, info.file_size

    def read(name: str) -> bytes:
        offset, size = place(name)
        file.seek(offset)
        found = file.read(size)
        if zlib.crc32(found) != records[name].CRC:
            raise zipfile.BadZipFile(f"the checksum of {name} is wrong")
        return found

    def storage_of(storage: StorageInPickle) -> torch.UntypedStorage:
        offset, size = place(f"data/{storage.key}")
        claimed = storage.num_elements * storage.dtype.itemsize
        if claimed > size:
            raise pickle.UnpicklingError(f"storage {storage.key} has {size} bytes, said are {claimed}")
        return _slice(content, offset, offset + claimed)

    if "byteorder" in records and read("byteorder") != b"little":
        raise pickle.UnpicklingError("written on a big-endian machine")
    pickled = read("data.pkl")
    return with_tensors(read_pickle(io.BytesIO(pickled)), storage_of, len(pickled))


def _slice(content: torch.UntypedStorage, begin: int, end: int) -> torch.UntypedStorage:
    part: Any = content[begin:end]
    return part  # type: ignore[no-any-return]  # as long as the slice has no step


def _offset(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    file.seek(info.header_offset)
    name_length, extra_length = _ZIP_LOCAL_HEADER.unpack(file.read(_ZIP_LOCAL_HEADER.size))
    return int(info.header_offset + _ZIP_LOCAL_HEADER.size + name_length + extra_length)


def _load_stream(file: io.BufferedReader) -> Any:
    """Reads the form before torch 1.6: pickles one after another, then each storage's length and bytes."""
    storages: dict[str, StorageInPickle] = {}
    places: dict[str, tuple[int, int]] = {}  # of each storage: its offset and number of elements

    def storage_of(storage: StorageInPickle) -> torch.UntypedStorage:
        if storage.key not in places:
            raise pickle.UnpicklingError(f"storage {storage.key} is not in the file")
        offset, num_elements = places[storage.key]
        if (storage.num_elements, storage.dtype) != (num_elements, storages[storage.key].dtype):
            raise pickle.UnpicklingError(
                f"storage {storage.key} has {num_elements} elements, said are {storage.num_elements}"
            )
        buffer = bytearray(num_elements * storage.dtype.itemsize)  # the file has as many bytes
        file.seek(offset)
        if file.readinto(buffer) != len(buffer):
            raise EOFError(f"storage {storage.key} ends early")
        if not buffer:
            return torch.UntypedStorage(0)
        return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()

    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if read_pickle(content) != _MAGIC:
            raise pickle.UnpicklingError("not made by torch.save")
        read_pickle(content)  # version of the protocol
        read_pickle(content)  # about the machine
        tree = read_pickle(content, storages)
        length = content.tell()
        for key in read_pickle(content):
            if key not in storages:
                raise pickle.UnpicklingError("a storage that no tensor uses")
            [num_elements] = struct.unpack("<q", content.read(8))
            end = content.tell() + num_elements * storages[key].dtype.itemsize
            if not content.tell() <= end <= len(content):
                raise EOFError(f"storage {key} ends early")
            places[key] = (content.tell(), num_elements)
            content.seek(end)
    return with_tensors(tree, storage_of, length)
