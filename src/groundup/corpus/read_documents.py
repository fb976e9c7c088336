"""Reading documents: text, JSONL and pages, compressed or not, Parquet and Arrow; one document at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from groundup.core.compressed import RecordedFile
from groundup.corpus.bad_records import BadRecords
from groundup.corpus.document import Document
from groundup.corpus.extraction.limits import ExtractionFailure
from groundup.corpus.extraction.page_reader import PageExtractor
from groundup.corpus.line_blocks import MalformedRecord
from groundup.corpus.parquet import plain
from groundup.corpus.recorded import CorpusManifests
from groundup.corpus.records import RecordReader, text_under
from groundup.corpus.source_ranges import SourceRange
from groundup.corpus.sources import SourceFile, find_source_files, form_of, printable


def read_documents(
    sources: Sequence[Path], *, text_key: str = "text", bad_records: BadRecords
) -> Iterator[Document]:
    """Reads every document of the sources, in order, holding one at a time.

    A text file is one document: its id is the path relative to the source. A line of a ``.jsonl``,
    ``.json`` or ``.ndjson`` file is one document: its id is the field ``id`` or else ``file:line``, its
    url the field ``url``, and every further field goes to ``meta`` (the fields of an object ``meta``
    are taken up into it, so that a written corpus reads back as it was). Endings ``.gz`` and ``.zst``
    are decompressed. A row of a ``.parquet`` or ``.arrow`` file is a document like a line, its columns being
    the fields. A page of a ``.warc`` file, and an ``.html`` file, is a document of its main text, which is
    empty where none is found.
    Blank lines are passed over. ``meta["origin"]`` is the ``file:line`` or file.

    Args:
        sources: Files, folders and globs.
        text_key: The field of a JSON object that holds the text.
        bad_records: Takes every record that is not valid UTF-8 or JSON, has no text under ``text_key``,
            contains NUL or lone surrogates, or stands behind the damage in a compressed file.

    Raises:
        DataError: A source is missing or unreadable; or as ``bad_records`` decides.
    """
    return read_files(find_source_files(sources), text_key=text_key, bad_records=bad_records)


def read_files(
    files: Iterable[SourceFile],
    *,
    text_key: str = "text",
    bad_records: BadRecords,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[Document]:
    """Like ``read_documents``, of files already found; ``on_read`` is told the bytes taken from disk."""
    manifests = CorpusManifests()
    with PageExtractor() as pages:
        for file in files:
            recorded = manifests.hold(file, bad_records)
            source = SourceRange(file, file.size_bytes)
            yield from read_range(
                source,
                text_key=text_key,
                bad_records=bad_records,
                on_read=on_read,
                recorded=recorded,
                pages=pages,
            )


def read_range(
    source: SourceRange,
    *,
    text_key: str,
    bad_records: BadRecords,
    on_read: Callable[[int], None] | None = None,
    recorded: RecordedFile | None = None,
    pages: PageExtractor | None = None,
    on_failure: Callable[[Document, ExtractionFailure], None] | None = None,
) -> Iterator[Document]:
    """Like ``read_files``, of a file or a range of it.

    Args:
        source: What to read; the lines before it must be known.
        text_key: The field that holds the text.
        bad_records: Takes what is no document.
        on_read: Told the bytes taken from disk.
        recorded: What a manifest records of the file.
        pages: What makes documents of pages.
        on_failure: Gets those without main text, which otherwise are yielded without text.
    """
    path, name = printable(source.file.path), source.file.name
    is_rows = form_of(source.file.path) == "rows"
    reader = RecordReader(source, text_key, on_read=on_read, recorded=recorded, pages=pages)
    for line, fields, raw, problem, failure in reader:
        origin, default_id = (f"{path}:{line}", f"{name}:{line}") if line else (path, name)
        try:
            if problem:
                raise problem
            text = text_under(text_key, fields)
            if "\0" in text:
                raise MalformedRecord("NUL byte", f"at character {text.index(chr(0)):,}")
            del fields[text_key]
            if is_rows:
                fields = {key: plain(value) for key, value in fields.items()}
            document = Document(_id_of(fields, default_id), _url_of(fields), text, _meta_of(fields, origin))
        except MalformedRecord as error:
            bad_records.add(origin, error.reason, detail=error.detail, record=raw)
            continue
        bad_records.add_good()
        if failure and on_failure:
            on_failure(document, failure)
        else:
            yield document


def _id_of(record: dict[str, Any], default: str) -> str:
    """Takes the id out of the record; one that is no plain value stays there."""
    value = record.get("id")
    if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
        del record["id"]
        return str(value)
    return default


def _url_of(record: dict[str, Any]) -> str:
    return record.pop("url") if isinstance(record.get("url"), str) else ""


def _meta_of(record: dict[str, Any], origin: str) -> dict[str, Any]:
    inner = record.get("meta")
    if isinstance(inner, dict):
        del record["meta"]
        record = {**inner, **record}
    record.setdefault("origin", origin)
    return record
