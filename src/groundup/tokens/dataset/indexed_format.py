"""The header of ``.idx``, and what can be wrong with it.

Layout, little-endian and unaligned (Megatron-LM, "MMIDIDX" version 1): magic (9 bytes) | version u64 |
dtype code u8 | S u64 | D u64 | S lengths i32 | S byte offsets i64 | D document ends i64 (the first is 0).
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from groundup.core.errors import DataError

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES: dict[int, type[np.integer[Any]]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
_FLOAT_CODES = (6, 7)

HEADER_BYTES = _HEADER.size


def dtype_code(dtype: np.dtype[Any]) -> int:
    """Megatron's code of a dtype; 0 when it has none."""
    return next((code for code, known in _DTYPES.items() if np.dtype(known) == dtype), 0)


def index_header(dtype: np.dtype[Any], num_sequences: int, num_ends: int) -> bytes:
    """The header of an index with so many sequences and document ends."""
    return _HEADER.pack(_MAGIC, _VERSION, dtype_code(dtype), num_sequences, num_ends)


def read_header(path: Path) -> tuple[np.dtype[Any], int, int]:
    """The dtype, number of sequences and number of document ends.

    Raises:
        DataError: Not such a file, of another version or dtype, or of another size than it says.
    """
    found = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if not head.startswith(_MAGIC):
        fix = (
            "The older TNTIDX format (lazy, cached) is not read: build the data again."
            if head.startswith(b"TNTIDX")
            else "Check the path."
        )
        raise DataError("is not an index of Megatron's format (MMIDIDX)", where=path, fix=fix)
    if len(head) < _HEADER.size:
        raise DataError(f"holds {found} bytes, its header alone has {_HEADER.size}", where=path)
    _, version, code, num_sequences, num_ends = _HEADER.unpack(head)
    if version != _VERSION:
        raise DataError(f"is of version {version}, expected {_VERSION}", where=path)
    if code in _FLOAT_CODES:
        raise DataError(f"holds floating-point numbers (dtype code {code}), not token ids", where=path)
    if code not in _DTYPES:
        known = ", ".join(f"{known} {np.dtype(kind)}" for known, kind in _DTYPES.items())
        raise DataError(f"has dtype code {code}; known are {known}", where=path)
    expected = _HEADER.size + 12 * num_sequences + 8 * num_ends
    if found == expected + num_sequences and num_sequences:
        raise DataError("holds a multimodal dataset's sequence modes; groundup reads text only", where=path)
    if found != expected:
        raise DataError(
            f"holds {found:,} bytes, its header says {expected:,}"
            f" ({num_sequences:,} sequences, {num_ends - 1:,} documents)",
            where=path,
            fix="It is truncated or damaged: copy or build it again.",
        )
    return np.dtype(_DTYPES[code]), num_sequences, num_ends
