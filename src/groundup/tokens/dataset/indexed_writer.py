"""Writing ``.bin`` and ``.idx``, byte for byte as Megatron-LM does."""

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from groundup.core.concatenate import append_range
from groundup.core.errors import DataError
from groundup.core.files import fsync_dir, temporary_path
from groundup.tokens.dataset.indexed import (
    IndexedDataset,
    bin_path,
    dtype_code,
    idx_path,
    index_header,
    token_dtype,
)

_CHUNK = 1 << 20
_COPY_BYTES = 1 << 26
_INDEX_CHUNK = 1 << 17


class IndexedWriter:
    """Writes a dataset, byte-identical to Megatron's; both files appear only at the end, .idx last.

    Memory does not grow with the data: the index arrays are appended to disk while writing.

    Args:
        prefix: Path without ending.
        vocab_size: Number of ids; decides the dtype unless ``dtype`` is given; 0 leaves it to ``dtype``.
        dtype: Integer dtype of the tokens, None for Megatron's choice.
    """

    def __init__(self, prefix: Path, *, vocab_size: int, dtype: npt.DTypeLike | None = None) -> None:
        self.prefix = prefix
        self.dtype = token_dtype(vocab_size) if dtype is None else np.dtype(dtype)
        if not dtype_code(self.dtype) or vocab_size - 1 > np.iinfo(self.dtype).max:
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
            name: temporary_path(prefix.with_name(f"{prefix.name}.{name}"))
            for name in ("tokens", "lengths", "ends", "index")
        }
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> "IndexedWriter":
        for name in ("tokens", "lengths", "ends"):
            self._files[name] = self._temporary[name].open("wb", buffering=_CHUNK)
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

    def add_dataset(
        self, data: IndexedDataset, *, on_copied: Callable[[int], None] = lambda size: None
    ) -> None:
        """Appends all documents of another dataset of the same dtype, as they are recorded there.

        Args:
            data: Its tokens are copied without being read into memory.
            on_copied: Told the number of bytes of each range of tokens.
        """
        if data.dtype != self.dtype:
            raise ValueError(f"{data.prefix} holds {data.dtype}, {self.prefix} {self.dtype}")
        size = data.num_tokens * self.dtype.itemsize
        for at in range(0, size, _COPY_BYTES):
            stop = min(at + _COPY_BYTES, size)
            on_copied(append_range(self._files["tokens"], bin_path(data.prefix), at, stop))
        for at in range(0, data.num_sequences, _CHUNK):
            self._files["lengths"].write(np.ascontiguousarray(data.lengths[at : at + _CHUNK]).data)
        for at in range(1, data.num_recorded_documents + 1, _CHUNK):
            ends = data.document_ends[at : at + _CHUNK] + self.num_sequences
            self._files["ends"].write(ends.astype("<i8").data)
        self.num_sequences += data.num_sequences
        self.num_documents += data.num_recorded_documents
        self.num_tokens += data.num_tokens

    def _finish(self) -> None:
        for file in self._files.values():
            file.flush()
        write_index(
            self._temporary["index"], self.dtype, [self._temporary["lengths"]], self._temporary["ends"]
        )
        os.fsync(self._files["tokens"].fileno())
        idx_path(self.prefix).unlink(missing_ok=True)  # never an old index beside new tokens
        self._temporary["tokens"].replace(bin_path(self.prefix))
        self._temporary["index"].replace(idx_path(self.prefix))
        fsync_dir(self.prefix.parent)


def write_index(
    path: Path, dtype: np.dtype[Any], lengths: Sequence[Path], document_ends: Path | None = None
) -> None:
    """Writes an ``.idx`` out of files of bare arrays, in memory that does not grow with them.

    Args:
        path: The file to write.
        dtype: Of the tokens.
        lengths: Files of int32: tokens of each sequence, in the order of the files.
        document_ends: File of int64: 0, then the sequences before each document's end; None where each
            sequence is a document.
    """
    num_sequences = sum(file.stat().st_size for file in lengths) // 4
    num_ends = document_ends.stat().st_size // 8 if document_ends else num_sequences + 1
    with path.open("wb", buffering=_CHUNK) as index:
        index.write(index_header(dtype, num_sequences, num_ends))
        for file in lengths:
            append_range(index, file)
        begin = 0
        for file in lengths:
            with file.open("rb") as numbers:
                while chunk := numbers.read(4 * _INDEX_CHUNK):
                    sizes = np.frombuffer(chunk, dtype="<i4").astype("<i8") * dtype.itemsize
                    index.write((begin + np.cumsum(sizes) - sizes).astype("<i8", copy=False).data)
                    begin += int(sizes.sum())
        if document_ends:
            append_range(index, document_ends)
        else:
            for first in range(0, num_ends, _INDEX_CHUNK):
                index.write(np.arange(first, min(first + _INDEX_CHUNK, num_ends), dtype="<i8").data)
        index.flush()
        os.fsync(index.fileno())
