"""Megatron's indexed dataset: ``.bin`` holds all tokens, ``.idx`` where each sequence begins.

Layout of ``.idx``, little-endian and unaligned (Megatron-LM, "MMIDIDX" version 1):
magic (9 bytes) | version u64 | dtype code u8 | S u64 | D u64 | S lengths i32 | S byte offsets i64 |
D document ends i64 (the first is 0). Without sentence splitting a document is one sequence.
"""

import os
import shutil
import struct
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.core.files import fsync_dir

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
_CHUNK = 1 << 20


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
    """A memory-mapped dataset, ours or Megatron's.

    Attributes:
        prefix: Path without ending.
        dtype: Of the tokens.
        lengths: [num_sequences] int32, tokens of each sequence.
        offsets: [num_sequences] int64, byte offset of each sequence.
        document_ends: [num_documents + 1] int64, sequences before each document.
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
        self.dtype, num_sequences, num_ends = _read_header(index)
        self.lengths = _mapped(index, np.int32, num_sequences, _HEADER.size)
        self.offsets = _mapped(index, np.int64, num_sequences, _HEADER.size + 4 * num_sequences)
        self.document_ends = _mapped(index, np.int64, num_ends, _HEADER.size + 12 * num_sequences)
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
        if num_ends < 1 or self.document_ends[0] != 0 or self.document_ends[-1] != num_sequences:
            raise DataError("its documents do not cover its sequences", where=index, fix="Build it again.")
        self.tokens = _mapped(data, self.dtype, expected // self.dtype.itemsize, 0)

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.document_ends) - 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    def sequence(self, index: int) -> npt.NDArray[Any]:
        """The tokens of one sequence, a view of the file."""
        begin = int(self.offsets[index]) // self.dtype.itemsize
        return self.tokens[begin : begin + int(self.lengths[index])]

    def token_begin(self, sequence: int) -> int:
        """Number of tokens before this sequence; ``sequence`` may be num_sequences."""
        if sequence == self.num_sequences:
            return self.num_tokens
        return int(self.offsets[sequence]) // self.dtype.itemsize

    def check(self, vocab_size: int = 0) -> None:
        """Reads everything once: offsets, document ends and, with ``vocab_size``, each token.

        Raises:
            DataError: Names the first offending sequence, document or token.
        """
        index = idx_path(self.prefix)
        begin = 0
        for first in range(0, self.num_sequences, _CHUNK):
            lengths = self.lengths[first : first + _CHUNK].astype(np.int64)
            sizes = lengths * self.dtype.itemsize
            offsets = begin + np.cumsum(sizes) - sizes
            wrong = np.flatnonzero((offsets != self.offsets[first : first + _CHUNK]) | (lengths < 0))
            if wrong.size:
                at = first + int(wrong[0])
                raise DataError(
                    f"sequence {at} has offset {int(self.offsets[at])} and length {int(self.lengths[at])},"
                    f" expected offset {int(offsets[wrong[0]])}",
                    where=index,
                    fix="Build it again.",
                )
            begin += int(sizes.sum())
        falling = np.flatnonzero(np.diff(self.document_ends) < 0)
        if falling.size:
            raise DataError(f"document {int(falling[0])} ends before it begins", where=index)
        if vocab_size:
            self._check_ids(vocab_size)

    def _check_ids(self, vocab_size: int) -> None:
        for first in range(0, self.num_tokens, _CHUNK):
            tokens = self.tokens[first : first + _CHUNK]
            if int(tokens.max()) >= vocab_size or int(tokens.min()) < 0:
                at = first + int(np.flatnonzero((tokens >= vocab_size) | (tokens < 0))[0])
                sequence = int(np.searchsorted(self.offsets, at * self.dtype.itemsize, side="right")) - 1
                position = at - self.token_begin(sequence)
                raise DataError(
                    f"token {int(self.tokens[at])} at position {position} of document {sequence} is outside"
                    f" the vocabulary of {vocab_size:,} ids",
                    where=bin_path(self.prefix),
                    fix="Use the tokenizer that the data was built with.",
                )


class IndexedWriter:
    """Writes a dataset, byte-identical to Megatron's; both files appear only at the end, .idx last.

    Memory does not grow with the data: the index arrays are appended to disk while writing.

    Args:
        prefix: Path without ending.
        vocab_size: Number of ids; decides the dtype unless ``dtype`` is given.
        dtype: Integer dtype of the tokens, None for Megatron's choice.
    """

    def __init__(self, prefix: Path, *, vocab_size: int, dtype: npt.DTypeLike | None = None) -> None:
        self.prefix = prefix
        self.dtype = token_dtype(vocab_size) if dtype is None else np.dtype(dtype)
        self._code = next((code for code, known in _DTYPES.items() if np.dtype(known) == self.dtype), 0)
        if not self._code or vocab_size - 1 > np.iinfo(self.dtype).max:
            raise DataError(
                f"{vocab_size:,} ids do not fit {self.dtype}",
                where=bin_path(prefix),
                fix=f"Use {token_dtype(vocab_size)}.",
            )
        self.num_sequences = 0
        self.num_documents = 0
        self.num_tokens = 0
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = {
            part: prefix.with_name(f".{prefix.name}.{os.getpid()}.{part}.tmp")
            for part in ("tokens", "lengths", "ends", "index")
        }
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> "IndexedWriter":
        for part in ("tokens", "lengths", "ends"):
            self._files[part] = self._temporary[part].open("w+b", buffering=_CHUNK)
        self._files["ends"].write(struct.pack("<q", 0))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            for file in self._files.values():
                file.close()
            for path in self._temporary.values():
                path.unlink(missing_ok=True)

    def add(self, tokens: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> None:
        """Appends documents of one sequence each.

        Args:
            tokens: [sum(lengths)], the documents one behind the other.
            lengths: [number of documents], tokens of each.
        """
        if len(tokens) != int(lengths.sum()):
            raise ValueError(f"{len(tokens)} tokens for lengths that add up to {int(lengths.sum())}")
        self._files["tokens"].write(np.ascontiguousarray(tokens, dtype=self.dtype).data)
        self._files["lengths"].write(np.ascontiguousarray(lengths, dtype="<i4").data)
        ends = self.num_sequences + 1 + np.arange(len(lengths), dtype="<i8")
        self._files["ends"].write(ends.data)
        self.num_sequences += len(lengths)
        self.num_documents += len(lengths)
        self.num_tokens += len(tokens)

    def _finish(self) -> None:
        for file in self._files.values():
            file.flush()
        with self._temporary["index"].open("wb", buffering=_CHUNK) as index:
            index.write(
                _HEADER.pack(_MAGIC, _VERSION, self._code, self.num_sequences, self.num_documents + 1)
            )
            self._append("lengths", index)
            self._write_offsets(index)
            self._append("ends", index)
            index.flush()
            os.fsync(index.fileno())
        os.fsync(self._files["tokens"].fileno())
        idx_path(self.prefix).unlink(missing_ok=True)  # never an old index beside new tokens
        self._temporary["tokens"].replace(bin_path(self.prefix))
        self._temporary["index"].replace(idx_path(self.prefix))
        fsync_dir(self.prefix.parent)

    def _append(self, part: str, index: IO[bytes]) -> None:
        self._files[part].seek(0)
        shutil.copyfileobj(self._files[part], index, _CHUNK)

    def _write_offsets(self, index: IO[bytes]) -> None:
        self._files["lengths"].seek(0)
        begin = 0
        while chunk := self._files["lengths"].read(4 * _CHUNK):
            sizes = np.frombuffer(chunk, dtype="<i4").astype("<i8") * self.dtype.itemsize
            index.write((begin + np.cumsum(sizes) - sizes).astype("<i8").data)
            begin += int(sizes.sum())


def _mapped(path: Path, dtype: npt.DTypeLike, count: int, offset: int) -> npt.NDArray[Any]:
    if count == 0:
        return np.empty(0, dtype)
    mapped = np.memmap(
        path, dtype=np.uint8, mode="r", offset=offset, shape=(count * np.dtype(dtype).itemsize,)
    )
    return mapped.view(np.ndarray).view(np.dtype(dtype).newbyteorder("<"))


def _read_header(path: Path) -> tuple[np.dtype[Any], int, int]:
    """The dtype, number of sequences and number of document ends, once the file's size agrees."""
    found = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if not head.startswith(_MAGIC):
        fix = "The older TNTIDX format is not read." if head.startswith(b"TNTIDX") else "Check the path."
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
