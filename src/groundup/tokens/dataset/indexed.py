"""Megatron's indexed dataset: ``.bin`` holds all tokens, ``.idx`` where each sequence begins.

``.idx`` is little-endian and unaligned (Megatron-LM, "MMIDIDX" version 1): magic (9 bytes) | version u64 |
dtype code u8 | S u64 | D u64 | S lengths i32 | S byte offsets i64 | D document ends i64 (the first is 0).
Without sentence splitting a document is one sequence.
"""

import functools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from groundup.core.errors import DataError
from groundup.core.files import checksum
from groundup.core.manifest import fingerprint

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


_LANDMARK_STRIDE = 4096
_SAMPLE_RANGES, _SAMPLE_TOKENS = 64, 1024


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Megatron's choice of dtype for a vocabulary: uint16 below 65,500 ids, else int32."""
    return np.dtype(np.uint16 if vocab_size < 65500 else np.int32)


def strip_ending(path: Path) -> Path:
    """The prefix of a dataset that is named by its prefix, its .bin or its .idx."""
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


def bin_path(prefix: Path) -> Path:
    """The file of tokens of a prefix."""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """The index file of a prefix."""
    return prefix.with_name(prefix.name + ".idx")


class IndexedDataset:
    """A memory-mapped dataset, ours or Megatron's; a ``TokenSource``.

    As a ``TokenSource`` its documents are the *sequences* of ``.idx``, for these are what Megatron-LM
    splits and shuffles. The two are the same but in files made with ``--split-sentences`` (several
    sequences a document) and for the empty documents that newer Megatron-LM records (none); what the file
    calls documents is in ``document_ends``.

    Attributes:
        prefix: Path without ending.
        dtype: Of the tokens.
        lengths: [num_sequences] int32, tokens of each sequence.
        offsets: [num_sequences] int64, byte offset of each sequence.
        document_ends: [num_recorded_documents + 1] int64, sequences before each document.
        tokens: [num_tokens], all tokens in file order.

    Raises:
        DataError: A file is missing, is not of this format, or the two do not match.
    """

    def __init__(self, path: Path) -> None:
        self.prefix = strip_ending(path)
        index, data = idx_path(self.prefix), bin_path(self.prefix)
        for file in (index, data):
            if not file.is_file():
                raise DataError(
                    "no such file",
                    where=file,
                    fix="Check the path, or write it with `groundup tokens build`.",
                )
        self.dtype, num_sequences, num_ends = read_header(index)
        arrays = np.split(  # one map, for every map keeps a file open
            _mapped(index)[HEADER_BYTES:], np.cumsum((4 * num_sequences, 8 * num_sequences))
        )
        self.lengths, self.offsets, self.document_ends = (
            array.view(dtype) for array, dtype in zip(arrays, ("<i4", "<i8", "<i8"), strict=True)
        )
        expected = 0
        if num_sequences:
            expected = int(self.offsets[-1]) + int(self.lengths[-1]) * self.dtype.itemsize
        found = data.stat().st_size
        if found != expected:
            raise DataError(
                f"holds {found:,} bytes, its index {index.name} says {expected:,}",
                where=data,
                fix="One of the two files is truncated or of another dataset: copy or build both again.",
            )
        if found % self.dtype.itemsize:
            raise DataError(f"holds {found:,} bytes, no whole number of {self.dtype} tokens", where=data)
        if num_ends < 1 or self.document_ends[0] != 0 or self.document_ends[-1] != num_sequences:
            raise DataError("its documents do not cover its sequences", where=index, fix="Build it again.")
        self.tokens = _mapped(data).view(self.dtype.newbyteorder("<"))

    def __reduce__(self) -> tuple[type["IndexedDataset"], tuple[Path]]:
        # A copy in another process maps the files itself: pickling the arrays would copy them whole.
        return IndexedDataset, (self.prefix,)

    @property
    def name(self) -> str:
        """The prefix."""
        return str(self.prefix)

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @property
    def num_documents(self) -> int:
        """Number of documents as Megatron-LM divides them: its sequences."""
        return len(self.lengths)

    @property
    def num_recorded_documents(self) -> int:
        """Number of documents that ``.idx`` records, whatever sequences each has."""
        return len(self.document_ends) - 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the index and a sample of the tokens; the same wherever the files lie."""
        return fingerprint([checksum(idx_path(self.prefix)), sample_checksum(self.tokens)])

    def sequence(self, index: int) -> npt.NDArray[Any]:
        """The tokens of one sequence, a view of the file."""
        begin = self.token_begin(index)
        return self.tokens[begin : begin + int(self.lengths[index])]

    def token_begin(self, document: int) -> int:
        """Number of tokens before a document (a sequence); ``document`` may be num_documents."""
        if document == self.num_sequences:
            return self.num_tokens
        return int(self.offsets[document]) // self.dtype.itemsize

    def document_lengths(self, begin: int, end: int) -> npt.NDArray[np.int32]:
        """Tokens of each of the documents (sequences) [begin, end)."""
        return np.array(self.lengths[begin:end], dtype=np.int32)

    def documents_at(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The document (sequence) of each of these tokens, of the same shape; 0 <= position < num_tokens."""
        offsets = np.asarray(positions, dtype=np.int64) * self.dtype.itemsize
        # A bisection of our own: np.searchsorted would copy the whole array, which is unaligned in .idx.
        found = (np.searchsorted(self._landmarks, offsets, side="right") - 1) * _LANDMARK_STRIDE
        step = _LANDMARK_STRIDE // 2
        while step:
            further = np.minimum(found + step, self.num_sequences - 1)
            found = np.where(self.offsets[further] <= offsets, further, found)
            step //= 2
        return found

    @functools.cached_property
    def _landmarks(self) -> npt.NDArray[np.int64]:
        return np.array(self.offsets[::_LANDMARK_STRIDE], dtype=np.int64)


def sample_checksum(tokens: npt.NDArray[Any], num_ranges: int = _SAMPLE_RANGES) -> str:
    """A hash of ranges that lie evenly over the tokens: cheap, and moved by any other tokenization."""
    digest = xxhash.xxh3_128()
    num_ranges = min(num_ranges, -(-len(tokens) // _SAMPLE_TOKENS))
    for begin in np.linspace(0, max(0, len(tokens) - _SAMPLE_TOKENS), num_ranges, dtype=np.int64):
        digest.update(np.ascontiguousarray(tokens[begin : begin + _SAMPLE_TOKENS]).tobytes())
    return digest.hexdigest()


def _mapped(path: Path) -> npt.NDArray[np.uint8]:
    if not path.stat().st_size:
        return np.empty(0, np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
