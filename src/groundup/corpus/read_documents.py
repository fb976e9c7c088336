"""Reading documents: text files and JSONL, compressed or not, and Parquet; one document at a time."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from groundup.core.compressed import DamagedFile, RecordedFile, open_decompressed
from groundup.core.errors import DataError
from groundup.corpus.bad_records import DAMAGED_FILE, BadRecords
from groundup.corpus.document import Document
from groundup.corpus.parquet import DamagedParquet, plain, read_dicts
from groundup.corpus.recorded import CorpusManifests
from groundup.corpus.sources import SourceFile, find_source_files, form_of, printable

MAX_RECORD_BYTES = 1 << 29
"""A longer line or text file counts as a bad record: it would be held in memory many times over."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_documents(
    sources: Sequence[Path], *, text_key: str = "text", bad_records: BadRecords
) -> Iterator[Document]:
    """Reads every document of the sources, in order, holding one at a time.

    A text file is one document: its id is the path relative to the source. A line of a ``.jsonl``,
    ``.json`` or ``.ndjson`` file is one document: its id is the field ``id`` or else ``file:line``, its
    url the field ``url``, and every further field goes to ``meta`` (the fields of an object ``meta``
    are taken up into it, so that a written corpus reads back as it was). Endings ``.gz`` and ``.zst``
    are decompressed. A row of a ``.parquet`` file is a document like a line, its columns being the fields.
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
    for file in files:
        form = form_of(file.path)
        if form == "rows":
            yield from _read_parquet(file, text_key, bad_records, on_read)
            continue
        recorded = manifests.hold(file, bad_records)
        with decompressed(file.path, on_read=on_read, recorded=recorded) as stream:
            if form == "lines":
                yield from _read_lines(stream, file, text_key, bad_records)
            else:
                yield from _read_text(stream, file, bad_records)


@contextlib.contextmanager
def decompressed(
    path: Path, *, on_read: Callable[[int], None] | None = None, recorded: RecordedFile | None = None
) -> Iterator[IO[bytes]]:
    """Like ``open_decompressed``, of a source: one that cannot be read is the user's to mend.

    Raises:
        DataError: The file cannot be opened or read.
    """
    try:
        with open_decompressed(path, on_read=on_read, recorded=recorded) as stream:
            yield stream
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        raise DataError(
            f"cannot read the file ({error.strerror})",
            where=path,
            fix="Make it readable or leave it out.",
        ) from None


def _read_text(stream: IO[bytes], file: SourceFile, bad_records: BadRecords) -> Iterator[Document]:
    where = printable(file.path)
    try:
        content = stream.read(MAX_RECORD_BYTES + 1)
    except DamagedFile as error:
        bad_records.add(where, DAMAGED_FILE, detail=error.what)
        return
    try:
        text = text_of_file(content)
    except MalformedRecord as error:
        at = f"{where}:{error.line}" if error.line else where
        bad_records.add(at, error.reason, detail=error.detail, record=content)
        return
    bad_records.add_good()
    yield Document(file.name, "", text, {"origin": where})


def text_of_file(content: bytes) -> str:
    """The content of a text file as text.

    Raises:
        MalformedRecord: Too long, not UTF-8, or with NUL bytes.
    """
    if len(content) > MAX_RECORD_BYTES:
        raise MalformedRecord("too long", f"over {MAX_RECORD_BYTES:,} bytes; split it or write it as JSONL")
    if (nul := content.find(b"\0")) >= 0:
        raise MalformedRecord("NUL byte", f"at byte {nul:,}: a binary file or UTF-16")
    try:
        return content.removeprefix(BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise MalformedRecord("not UTF-8", f"{error.reason} at byte {error.start:,}", line) from None


def _read_parquet(
    file: SourceFile,
    text_key: str,
    bad_records: BadRecords,
    on_read: Callable[[int], None] | None,
) -> Iterator[Document]:
    path = printable(file.path)
    number = 0
    read = 0.0
    try:
        for record, share in read_dicts(file.path, text_key):
            number += 1
            read += share * file.size_bytes
            if on_read and read >= 1:
                on_read(int(read))
                read %= 1
            try:
                text = text_of_value(text_key, record.pop(text_key))
                values = {key: plain(value) for key, value in record.items()}
                document = _document_of(values, text, f"{file.name}:{number}", f"{path}:{number}")
            except MalformedRecord as error:
                bad_records.add(f"{path}:{number}", error.reason, detail=error.detail)
                continue
            bad_records.add_good()
            yield document
    except DamagedParquet as error:
        bad_records.add(f"{path}:{number + 1}", DAMAGED_FILE, detail=error.what)


def text_of_value(column: str, value: Any) -> str:
    """The text of a cell of a Parquet file, whose strings come as bytes.

    Raises:
        MalformedRecord: Null, no string, or not UTF-8.
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord("not UTF-8", f"{error.reason} at byte {error.start:,}") from None
    if value is None:
        raise MalformedRecord("text is not a string", f"{column!r} is null")
    raise MalformedRecord("text is not a string", f"{column!r} is of type {type(value).__name__}")


def _read_lines(
    stream: IO[bytes], file: SourceFile, text_key: str, bad_records: BadRecords
) -> Iterator[Document]:
    path = printable(file.path)
    for number, line in _lines(stream, path, bad_records):
        try:
            record = _object_of(line)
            text = _text_under(text_key, record)
            del record[text_key]
            document = _document_of(record, text, f"{file.name}:{number}", f"{path}:{number}")
        except MalformedRecord as error:
            bad_records.add(f"{path}:{number}", error.reason, detail=error.detail, record=line)
            continue
        bad_records.add_good()
        yield document


def _lines(stream: IO[bytes], path: str, bad_records: BadRecords) -> Iterator[tuple[int, bytes]]:
    """Each line that is not blank, and its number; those too long or behind damage are bad records."""
    number = 0
    while True:
        try:
            line = stream.readline(MAX_RECORD_BYTES)
            oversized = len(line) == MAX_RECORD_BYTES and not line.endswith(b"\n")
            while oversized and (rest := stream.readline(MAX_RECORD_BYTES)) and not rest.endswith(b"\n"):
                pass
        except DamagedFile as error:
            bad_records.add(f"{path}:{number + 1}", DAMAGED_FILE, detail=error.what)
            return
        if not line:
            return
        number += 1
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if line.isspace() or not line:
            continue
        if oversized:
            bad_records.add(f"{path}:{number}", "too long", detail=f"over {MAX_RECORD_BYTES:,} bytes")
            continue
        yield number, line


class MalformedRecord(Exception):  # not an error of the run
    """A line, row or file that is no document, and why.

    Attributes:
        reason: A short phrase from a small set.
        detail: What is particular to this one.
        line: Of a text file, where the line is known.
    """

    def __init__(self, reason: str, detail: str = "", line: int = 0) -> None:
        super().__init__(reason, detail, line)
        self.reason = reason
        self.detail = detail
        self.line = line


def _document_of(record: dict[str, Any], text: str, default_id: str, origin: str) -> Document:
    if "\0" in text:
        raise MalformedRecord("NUL byte", f"at character {text.index(chr(0)):,}")
    return Document(_id_of(record, default_id), _url_of(record), text, _meta_of(record, origin))


def texts_of_line(line: bytes, text_keys: Sequence[str]) -> tuple[list[str], str]:
    """The texts of a JSON line under several keys, as they are, and its URL (``url`` or ``meta.url``).

    Raises:
        MalformedRecord: Not an object in JSON and UTF-8, or a key is missing or holds no string.
    """
    record = _object_of(line)
    url = record.get("url")
    if url is None and isinstance(meta := record.get("meta"), dict):
        url = meta.get("url")
    return [_text_under(key, record) for key in text_keys], url if isinstance(url, str) else ""


def _object_of(line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        message = error.msg
        if "not valid UTF-8" in message:
            raise MalformedRecord("not UTF-8") from None
        if "surrogate" in message:
            raise MalformedRecord("lone surrogate", f"{message} at column {error.colno}") from None
        detail = f"{message} at column {error.colno}"
        if line.strip() in (b"[", b"{"):
            detail = "the JSON spans several lines; one object a line is expected"
        raise MalformedRecord("not JSON", detail) from None
    if not isinstance(record, dict):
        raise MalformedRecord(
            "not an object", f"of type {type(record).__name__}; one object a line is expected"
        )
    return record


def _text_under(text_key: str, record: dict[str, Any]) -> str:
    if text_key not in record:
        keys = ", ".join(list(record)[:8]) or "none"
        raise MalformedRecord("no text key", f"no key {text_key!r}; the keys are: {keys}")
    text = record[text_key]
    if not isinstance(text, str):
        raise MalformedRecord("text is not a string", f"{text_key!r} is of type {type(text).__name__}")
    return text


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
