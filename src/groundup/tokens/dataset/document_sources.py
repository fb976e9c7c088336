"""Document sources, ``{prefix}.sources.npz``: the file, line and URL that each document came from.

An uncompressed archive that ``numpy.load`` reads. ``documents`` has a line and the end of its URL in ``urls``
for each document of ``.idx``; ``sources`` has the first document of each source and the end of its name in
``names``; both texts are UTF-8.
"""

import contextlib
import dataclasses
import itertools
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.core.files import atomic_write

_DTYPES = {
    "documents": np.dtype([("line", "<u8"), ("url_end", "<u8")]),
    "urls": np.dtype("u1"),
    "sources": np.dtype([("first_document", "<u8"), ("name_end", "<u8")]),
    "names": np.dtype("u1"),
}
_CHUNK = 1 << 20
_LOCAL_HEADER = struct.Struct("<26x2H")  # of a zip archive: the lengths of what stands before the content

_Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class DocumentSource:
    """Where a document came from.

    Attributes:
        source: The file, as it was named or found when the data set was built.
        line: Line of a JSONL file or row of a Parquet file, from 1; 0 for a whole file.
        url: Where the text was published; empty when unknown.
    """

    source: str
    line: int
    url: str


def document_sources_path(prefix: Path) -> Path:
    """The file for a data set's prefix."""
    return prefix.with_name(prefix.name + ".sources.npz")


class DocumentSources:
    """The sources of a data set's documents, memory-mapped.

    Args:
        prefix: Of the data set, without ending.

    Raises:
        DataError: There is no such file (Megatron-LM writes none), or it is damaged.
    """

    def __init__(self, prefix: Path) -> None:
        path = document_sources_path(prefix)
        if not path.is_file():
            raise DataError(
                "no such file: it is not recorded where the documents came from",
                where=path,
                fix="Build the dataset with `groundup tokens build`; other tools do not record it.",
            )
        self._arrays = _map(path)

    def __len__(self) -> int:
        return len(self._arrays["documents"])

    def __getitem__(self, document: int) -> DocumentSource:
        if not 0 <= document < len(self):
            raise IndexError(f"document {document} of {len(self)}")
        documents, sources = self._arrays["documents"], self._arrays["sources"]
        source = int(np.searchsorted(sources["first_document"], document, side="right")) - 1
        return DocumentSource(
            source=_text(sources["name_end"], self._arrays["names"], source).decode(errors="replace"),
            line=int(documents["line"][document]),
            url=_text(documents["url_end"], self._arrays["urls"], document).decode(errors="replace"),
        )

    def documents_by_source(self, most: int) -> dict[str, int]:
        """The first ``most`` sources by name, with how many documents came from each."""
        sources, names = self._arrays["sources"], self._arrays["names"]
        firsts = [*(int(first) for first in sources["first_document"][: most + 1]), len(self)]
        found: dict[str, int] = {}
        for place, (first, end) in enumerate(itertools.pairwise(firsts[: most + 1])):
            name = _text(sources["name_end"], names, place).decode(errors="replace")
            found[name] = found.get(name, 0) + end - first
        return found


class DocumentSourcesWriter:
    """Writes document sources; the file appears at the end, whole. Memory grows with the sources only.

    Args:
        path: The file to write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sources = _Sources()

    def __enter__(self) -> "DocumentSourcesWriter":
        with contextlib.ExitStack() as stack:
            self._documents = stack.enter_context(tempfile.TemporaryFile(dir=self.path.parent))
            self._urls = stack.enter_context(tempfile.TemporaryFile(dir=self.path.parent))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if error is None:
                num_documents = self._documents.tell() // _DTYPES["documents"].itemsize
                num_urls = self._urls.tell()
                documents, urls = _read_back(self._documents), _read_back(self._urls)
                _write(self.path, (num_documents, documents), (num_urls, urls), self._sources)

    def add(self, source: str, lines: _Array, url_lengths: _Array | None = None, urls: bytes = b"") -> None:
        """Appends documents of one source.

        Args:
            source: The file; may be the one of the last call.
            lines: [number of documents], the line of each.
            url_lengths: [number of documents], bytes of each URL; None where none has one.
            urls: The URLs one behind the other.
        """
        if not len(lines):
            return
        self._sources.add(source.encode(), self._documents.tell() // _DTYPES["documents"].itemsize)
        documents = np.empty(len(lines), dtype=_DTYPES["documents"])
        documents["line"] = lines
        documents["url_end"] = self._urls.tell()
        if url_lengths is not None:
            documents["url_end"] += np.cumsum(url_lengths, dtype=np.uint64)
        self._documents.write(documents.tobytes())
        self._urls.write(urls)


def join_document_sources(shards: Sequence[tuple[Path, int]], path: Path) -> None:
    """Joins files of document sources, whose documents follow one another, into one, atomically.

    Memory grows with the sources only. A source that goes on in the next file is listed once.

    Args:
        shards: Each file, and what is added to its lines (it may hold a range of a source only).
        path: The file to write.
    """
    sources = _Sources()
    num_documents, url_begins = 0, [0]
    for shard, _ in shards:
        arrays = _map(shard)
        for number, first in enumerate(arrays["sources"]["first_document"].tolist()):
            name = _text(arrays["sources"]["name_end"], arrays["names"], number)
            sources.add(name, num_documents + first)
        num_documents += len(arrays["documents"])
        url_begins.append(url_begins[-1] + len(arrays["urls"]))

    def documents() -> Iterator[_Array]:
        for (shard, shift), url_begin in zip(shards, url_begins, strict=False):
            for chunk in _read(shard, "documents"):
                moved = chunk.copy()
                moved["line"] += np.uint64(shift)
                moved["url_end"] += np.uint64(url_begin)
                yield moved

    urls = (chunk for shard, _ in shards for chunk in _read(shard, "urls"))
    _write(path, (num_documents, documents()), (url_begins[-1], urls), sources)


class _Sources:
    """The names of the sources, and the first document of each."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self.names = bytearray()
        self._last: bytes | None = None

    def add(self, name: bytes, first_document: int) -> None:
        if name != self._last:
            self._last = name
            self.names += name
            self.rows.append((first_document, len(self.names)))


def _write(
    path: Path,
    documents: tuple[int, Iterable[_Array]],
    urls: tuple[int, Iterable[_Array]],
    sources: _Sources,
) -> None:
    """Writes the archive; of documents and URLs their number and their chunks."""
    rows, names = np.array(sources.rows, _DTYPES["sources"]), np.frombuffer(sources.names, _DTYPES["names"])
    content = {
        "documents": documents,
        "urls": urls,
        "sources": (len(rows), [rows]),
        "names": (len(names), [names]),
    }
    with atomic_write(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, (length, chunks) in content.items():
            header = {
                "descr": np.lib.format.dtype_to_descr(_DTYPES[name]),
                "fortran_order": False,
                "shape": (length,),
            }
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for chunk in chunks:
                    member.write(chunk.tobytes())


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, EOFError, struct.error) as error:
        raise DataError(
            f"is not a whole file of document sources ({error})",
            where=path,
            fix="It is truncated or damaged: copy it again or build the dataset again.",
        ) from None


def _map(path: Path) -> dict[str, _Array]:
    with _opened(path) as archive, path.open("rb") as file:
        content = np.memmap(file, np.uint8, "r").view(np.ndarray)  # once, for every map keeps a file open
        arrays = {}
        for name, dtype in _DTYPES.items():
            info = archive.getinfo(f"{name}.npy")
            file.seek(info.header_offset)
            file.seek(sum(_LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))), 1)
            length = _read_length(file, dtype)
            arrays[name] = content[file.tell() : file.tell() + length * dtype.itemsize].view(dtype)
            if len(arrays[name]) != length or info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{info.filename} ends early or is compressed")
        if len(arrays["documents"]) and not len(arrays["sources"]):
            raise ValueError("its documents have no source")
    return arrays


def _read(path: Path, name: str) -> Iterator[_Array]:
    """An array by chunks: mapped pages would count as memory of this process."""
    dtype = _DTYPES[name]
    with _opened(path) as archive, archive.open(f"{name}.npy") as member:
        _read_length(member, dtype)
        while chunk := member.read(_CHUNK):
            yield np.frombuffer(chunk, dtype)


def _read_length(file: IO[bytes], dtype: np.dtype[Any]) -> int:
    """Reads the header of an ``.npy`` of one dimension."""
    np.lib.format.read_magic(file)
    (length,), _, found = np.lib.format.read_array_header_1_0(file)
    if found != dtype:
        raise ValueError(f"an array holds {found}, expected {dtype}")
    return int(length)


def _read_back(file: IO[bytes]) -> Iterator[_Array]:
    file.seek(0)
    while chunk := file.read(_CHUNK):
        yield np.frombuffer(chunk, np.uint8)


def _text(ends: _Array, text: _Array, number: int) -> bytes:
    begin = int(ends[number - 1]) if number else 0
    return text[begin : int(ends[number])].tobytes()
