"""Where each document of a dataset came from: ``{prefix}.origins``.

Layout, little-endian: header (magic, version, documents, sources, bytes of names, bytes of URLs; u64 each)
| a record a document: line u64, end of its URL in the blob of URLs u64
| a record a source: its first document u64, end of its name in the blob of names u64
| names | URLs, both UTF-8. Documents lie in the order of their sources.
"""

import dataclasses
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from groundup.core.concatenate import append_range
from groundup.core.errors import DataError
from groundup.core.files import atomic_write

_MAGIC = b"GUORIGIN"
_VERSION = 1
_HEADER = struct.Struct("<8sQQQQQ")
_RECORD_BYTES = 16
_CHUNK_RECORDS = 1 << 16

_Pairs = npt.NDArray[np.uint64]


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where a document came from.

    Attributes:
        source: The file, as it was named or found when the dataset was built.
        line: Line of a JSONL file or row of a Parquet file, from 1; 0 for a whole file.
        url: Where the text was published; empty when unknown.
    """

    source: str
    line: int
    url: str


def origins_path(prefix: Path) -> Path:
    """The file of origins of a dataset's prefix."""
    return prefix.with_name(prefix.name + ".origins")


class Origins:
    """The origins of a dataset's documents, memory-mapped.

    Args:
        prefix: Of the dataset, without ending.

    Raises:
        DataError: There is no such file (Megatron-LM writes none), or it is damaged.
    """

    def __init__(self, prefix: Path) -> None:
        path = origins_path(prefix)
        if not path.is_file():
            raise DataError(
                "no such file: it is not recorded where the documents came from",
                where=path,
                fix="Build the dataset with `groundup tokens build`; other tools write no origins.",
            )
        self._sections = _Sections.read(path)
        content = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
        self._documents = _pairs(content[self._sections.documents])
        self._sources = _pairs(content[self._sections.sources])
        if len(self) and not (len(self._sources) and self._sources[0, 0] == 0):
            raise DataError("its first source has no first document", where=path, fix="Build it again.")
        self._names = content[self._sections.names]
        self._urls = content[self._sections.urls]

    def __len__(self) -> int:
        return len(self._documents)

    def origin(self, document: int) -> Origin:
        """Where a document came from.

        Args:
            document: Its number in the ``.idx``, from 0.

        Raises:
            IndexError: There is no such document.
        """
        if not 0 <= document < len(self):
            raise IndexError(f"document {document} of {len(self)}")
        source = int(np.searchsorted(self._sources[:, 0], document, side="right")) - 1
        return Origin(
            source=_text(self._sources[:, 1], self._names, source),
            line=int(self._documents[document, 0]),
            url=_text(self._documents[:, 1], self._urls, document),
        )


class OriginsWriter:
    """Writes a file of origins; it appears at the end, whole. Memory grows with the sources only.

    Args:
        path: The file to write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._temporary_urls = path.with_name(f".{path.name}.{os.getpid()}.urls.tmp")
        self._first_documents = array("Q")
        self._name_ends = array("Q")
        self._names = bytearray()
        self._last_source: str | None = None
        self._num_documents = 0
        self._num_url_bytes = 0

    def __enter__(self) -> "OriginsWriter":
        self._file: IO[bytes] = self._temporary.open("wb", buffering=1 << 16)
        self._url_file: IO[bytes] = self._temporary_urls.open("wb", buffering=1 << 16)
        self._file.write(bytes(_HEADER.size))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._file.close()
            self._url_file.close()
            self._temporary.unlink(missing_ok=True)
            self._temporary_urls.unlink(missing_ok=True)

    def add(
        self,
        source: str,
        lines: npt.NDArray[Any],
        url_lengths: npt.NDArray[Any] | None = None,
        urls: bytes = b"",
    ) -> None:
        """Appends documents of one source.

        Args:
            source: The file; may be the one of the last call.
            lines: [number of documents], the line of each.
            url_lengths: [number of documents], bytes of each URL; None where none has one.
            urls: The URLs one behind the other.
        """
        if not len(lines):
            return
        if source != self._last_source:
            self._last_source = source
            self._names += source.encode()
            self._first_documents.append(self._num_documents)
            self._name_ends.append(len(self._names))
        records = np.empty((len(lines), 2), dtype="<u8")
        records[:, 0] = lines
        records[:, 1] = self._num_url_bytes
        if url_lengths is not None:
            records[:, 1] += np.cumsum(url_lengths, dtype=np.uint64)
        self._file.write(records.data)
        self._url_file.write(urls)
        self._num_documents += len(lines)
        self._num_url_bytes += len(urls)

    def _finish(self) -> None:
        sources = np.array([self._first_documents, self._name_ends], dtype="<u8").T
        self._file.write(np.ascontiguousarray(sources).data)
        self._file.write(self._names)
        self._url_file.flush()
        append_range(self._file, self._temporary_urls)
        header = (self._num_documents, len(sources), len(self._names), self._num_url_bytes)
        self._file.seek(0)
        self._file.write(_HEADER.pack(_MAGIC, _VERSION, *header))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._temporary.replace(self.path)


def join_origins(pieces: Sequence[tuple[Path, int]], path: Path) -> None:
    """Joins files of origins, whose documents follow one another, into one; atomically, in little memory.

    Args:
        pieces: Each file, and what is added to its lines (it may hold a part of a source only).
        path: The file to write.
    """
    sections = [_Sections.read(piece) for piece, _ in pieces]
    # A source that goes on in the next piece is listed once.
    skipped = _continued(pieces, sections)
    with atomic_write(path) as file:
        num_names = sum(part.num_name_bytes for part in sections) - sum(len(name) for name in skipped)
        num_sources = sum(part.num_sources for part in sections) - sum(bool(name) for name in skipped)
        num_documents = sum(part.num_documents for part in sections)
        num_urls = sum(part.num_url_bytes for part in sections)
        file.write(_HEADER.pack(_MAGIC, _VERSION, num_documents, num_sources, num_names, num_urls))
        urls = 0
        for (piece, shift), part in zip(pieces, sections, strict=True):
            for records in _read_pairs(piece, part.documents):
                file.write((records + np.array([shift, urls], dtype=np.uint64)).astype("<u8").data)
            urls += part.num_url_bytes
        documents = names = 0
        for (piece, _), part, name in zip(pieces, sections, skipped, strict=True):
            first = slice(part.sources.start + _RECORD_BYTES * bool(name), part.sources.stop)
            for records in _read_pairs(piece, first):
                moved = np.array([documents, names - len(name)], dtype=np.int64).astype(np.uint64)
                file.write((records + moved).astype("<u8").data)
            documents += part.num_documents
            names += part.num_name_bytes - len(name)
        for (piece, _), part, name in zip(pieces, sections, skipped, strict=True):
            append_range(file, piece, part.names.start + len(name), part.names.stop)
        for (piece, _), part in zip(pieces, sections, strict=True):
            append_range(file, piece, part.urls.start, part.urls.stop)


@dataclasses.dataclass(frozen=True, slots=True)
class _Sections:
    """How much of everything a file holds, and where."""

    num_documents: int
    num_sources: int
    num_name_bytes: int
    num_url_bytes: int

    @classmethod
    def read(cls, path: Path) -> "_Sections":
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
        if len(head) < _HEADER.size or head[:8] != _MAGIC:
            raise DataError("is not a file of origins", where=path, fix="Build the dataset again.")
        _, version, *counts = _HEADER.unpack(head)
        if version != _VERSION:
            raise DataError(f"is of version {version}, expected {_VERSION}", where=path)
        sections = cls(*counts)
        if size != sections.urls.stop:
            raise DataError(
                f"holds {size:,} bytes, its header says {sections.urls.stop:,}",
                where=path,
                fix="It is truncated or damaged: copy it again or build the dataset again.",
            )
        return sections

    @property
    def documents(self) -> slice:
        return slice(_HEADER.size, _HEADER.size + _RECORD_BYTES * self.num_documents)

    @property
    def sources(self) -> slice:
        begin = self.documents.stop
        return slice(begin, begin + _RECORD_BYTES * self.num_sources)

    @property
    def names(self) -> slice:
        return slice(self.sources.stop, self.sources.stop + self.num_name_bytes)

    @property
    def urls(self) -> slice:
        return slice(self.names.stop, self.names.stop + self.num_url_bytes)


def _continued(pieces: Sequence[tuple[Path, int]], sections: Sequence[_Sections]) -> list[bytes]:
    """For each piece: the name of its first source where the piece before ends with it, else nothing."""
    skipped = []
    last = None
    for (piece, _), part in zip(pieces, sections, strict=True):
        if not part.num_sources:
            skipped.append(b"")
            continue
        with piece.open("rb") as file:
            file.seek(part.sources.start)
            pairs = np.frombuffer(file.read(_RECORD_BYTES * part.num_sources), dtype="<u8").reshape(-1, 2)
            names = file.read(part.num_name_bytes)
        first = names[: int(pairs[0, 1])]
        skipped.append(first if first == last else b"")
        last = names[int(pairs[-2, 1]) if len(pairs) > 1 else 0 :]
    return skipped


def _read_pairs(path: Path, where: slice) -> Iterator[_Pairs]:
    with path.open("rb") as file:
        file.seek(where.start)
        left = where.stop - where.start
        while left:
            chunk = file.read(min(left, _RECORD_BYTES * _CHUNK_RECORDS))
            left -= len(chunk)
            yield np.frombuffer(chunk, dtype="<u8").reshape(-1, 2)


def _pairs(content: npt.NDArray[np.uint8]) -> _Pairs:
    return content.view("<u8").reshape(-1, 2)


def _text(ends: npt.NDArray[np.uint64], blob: npt.NDArray[np.uint8], index: int) -> str:
    begin = int(ends[index - 1]) if index else 0
    return blob[begin : int(ends[index])].tobytes().decode(errors="replace")
