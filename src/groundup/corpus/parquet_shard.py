"""Writing documents as Parquet: columns id, url, text, and meta as JSON (extra ``[parquet]``: pyarrow)."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from groundup.core.errors import MachineError
from groundup.core.files import atomic_write
from groundup.corpus.document import Document, text_bytes
from groundup.corpus.parquet import MARK

_GROUP_BYTES = 16 << 20  # of text, so that readers can share a file
_GROUP_DOCUMENTS = 50_000


def write_parquet(path: Path, documents: Iterator[Document]) -> None:
    """Writes documents, which ``read_documents`` reads back as they were.

    Raises:
        MachineError: pyarrow is not installed.
    """
    pyarrow, parquet = _pyarrow(path)
    names = ("id", "url", "text", "meta")
    schema = pyarrow.schema([(name, pyarrow.string()) for name in names], metadata={MARK: b"1"})
    with (
        atomic_write(path) as file,
        parquet.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=False,
            write_page_checksum=True,
            data_page_version="2.0",
        ) as writer,
    ):
        for group in _groups(documents):
            columns = zip(*map(_row, group), strict=True)
            writer.write_table(pyarrow.table(dict(zip(names, columns, strict=True)), schema=schema))


def _row(document: Document) -> tuple[str, str, str, str]:
    return document.id, document.url, document.text, orjson.dumps(document.meta).decode()


def _groups(documents: Iterator[Document]) -> Iterator[list[Document]]:
    for first in documents:
        group, size = [first], text_bytes(first.text)
        while size < _GROUP_BYTES and len(group) < _GROUP_DOCUMENTS:
            following = list(itertools.islice(documents, 1))
            if not following:
                break
            group += following
            size += text_bytes(following[0].text)
        yield group


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MachineError(
            "writing Parquet needs pyarrow", where=path, fix="Type: pip install 'groundup[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet
