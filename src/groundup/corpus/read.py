"""Reading documents: plain text files and JSONL, compressed or not, one document at a time."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from groundup.core.errors import DataError
from groundup.core.files import open_decompressed
from groundup.corpus.bad_records import BadRecords
from groundup.corpus.document import Document
from groundup.corpus.sources import JSON_ENDINGS, SourceFile, content_ending, find_source_files

MAX_RECORD_BYTES = 1 << 29
"""A longer line or text file counts as a bad record: it would be held in memory many times over."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UNREADABLE_ENDINGS = {".parquet": "Parquet", ".arrow": "Arrow", ".zip": "zip", ".tar": "tar", ".xz": "xz"}


def read_documents(
    sources: Sequence[Path], *, text_key: str = "text", bad_records: BadRecords
) -> Iterator[Document]:
    """Reads every document of the sources, in order, holding one at a time.

    A text file is one document: its id is the path relative to the source. A line of a ``.jsonl``,
    ``.json`` or ``.ndjson`` file is one document: its id is the field ``id`` or else ``file:line``, its
    url the field ``url``, and every further field goes to ``meta`` (the fields of an object ``meta``
    are taken up into it, so that a written corpus reads back as it was). Endings ``.gz`` and ``.zst``
    are decompressed. Blank lines are passed over. ``meta["origin"]`` is the ``file:line`` or file.

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
    for file in files:
        with _open(file, on_read) as (stream, is_json):
            if is_json:
                yield from _read_lines(stream, file, text_key, bad_records)
            else:
                yield from _read_text(stream, file, bad_records)


@dataclasses.dataclass(frozen=True, slots=True)
class RawRecord:
    """What one document is read from.

    Attributes:
        where: ``file:line``, or the file.
        content: A JSON line as bytes, or the text of a text file.
    """

    where: str
    content: bytes | str


def read_records(
    files: Iterable[SourceFile],
    *,
    bad_records: BadRecords,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[RawRecord]:
    """Like ``read_files``, with JSON lines not yet parsed, for those who parse them in other processes.

    Counts no record as good: that is known only to whom parses it.
    """
    for file in files:
        with _open(file, on_read) as (stream, is_json):
            path = _printable(file.path)
            if is_json:
                for number, line in _lines(stream, path, bad_records):
                    yield RawRecord(f"{path}:{number}", line)
            else:
                text = _read_whole(stream, path, bad_records)
                if text is not None:
                    yield RawRecord(path, text)


@contextlib.contextmanager
def _open(file: SourceFile, on_read: Callable[[int], None] | None) -> Iterator[tuple[IO[bytes], bool]]:
    """The decompressed stream of a file, and whether it holds JSON lines."""
    ending = content_ending(file.path)
    if kind := _UNREADABLE_ENDINGS.get(ending) or _UNREADABLE_ENDINGS.get(file.path.suffix.lower()):
        raise DataError(
            f"{kind} files are not read",
            where=file.path,
            fix="Convert it to JSONL, one object with the text a line, or to text files.",
        )
    try:
        with open_decompressed(file.path, on_read=on_read) as stream:
            yield stream, ending in JSON_ENDINGS
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        raise DataError(
            f"cannot read the file ({error.strerror})",
            where=file.path,
            fix="Make it readable or leave it out.",
        ) from None


def _read_text(stream: IO[bytes], file: SourceFile, bad_records: BadRecords) -> Iterator[Document]:
    where = _printable(file.path)
    text = _read_whole(stream, where, bad_records)
    if text is not None:
        bad_records.add_good()
        yield Document(file.name, "", text, {"origin": where})


def _read_whole(stream: IO[bytes], where: str, bad_records: BadRecords) -> str | None:
    """The text of a text file; None where it is a bad record."""
    try:
        content = stream.read(MAX_RECORD_BYTES + 1)
    except DataError as error:
        bad_records.add(where, "damaged file", detail=error.what)
        return None
    return _text_of(content, where, bad_records)


def _text_of(content: bytes, where: str, bad_records: BadRecords) -> str | None:
    """The content of a text file as text; None where it is a bad record."""
    if len(content) > MAX_RECORD_BYTES:
        reason, detail = "too long", f"over {MAX_RECORD_BYTES:,} bytes; split it or write it as JSONL"
    elif (nul := content.find(b"\0")) >= 0:
        reason, detail = "NUL byte", f"at byte {nul:,}: a binary file or UTF-16"
    else:
        try:
            return content.removeprefix(_BYTE_ORDER_MARK).decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            where, reason, detail = f"{where}:{line}", "not UTF-8", f"{error.reason} at byte {error.start:,}"
    bad_records.add(where, reason, detail=detail, record=content)
    return None


def _read_lines(
    stream: IO[bytes], file: SourceFile, text_key: str, bad_records: BadRecords
) -> Iterator[Document]:
    path = _printable(file.path)
    for number, line in _lines(stream, path, bad_records):
        try:
            document = _document_of(line, text_key, f"{file.name}:{number}", f"{path}:{number}")
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
        except DataError as error:
            detail = f"{error.what}; what stands before is kept"
            bad_records.add(f"{path}:{number + 1}", "damaged file", detail=detail)
            return
        if not line:
            return
        number += 1
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.isspace() or not line:
            continue
        if oversized:
            bad_records.add(f"{path}:{number}", "too long", detail=f"over {MAX_RECORD_BYTES:,} bytes")
            continue
        yield number, line


class MalformedRecord(Exception):  # not an error of the run
    """A line that is no document, and why."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def _document_of(line: bytes, text_key: str, default_id: str, origin: str) -> Document:
    record = _object_of(line)
    text = _text_under(text_key, record)
    del record[text_key]
    if "\0" in text:
        raise MalformedRecord("NUL byte", f"at character {text.index(chr(0)):,}")
    return Document(_id_of(record, default_id), _url_of(record), text, _meta_of(record, origin))


def texts_of_line(line: bytes, text_keys: Sequence[str]) -> list[str]:
    """The texts of a JSON line under several keys, as they are.

    Raises:
        MalformedRecord: Not an object in JSON and UTF-8, or a key is missing or holds no string.
    """
    record = _object_of(line)
    return [_text_under(key, record) for key in text_keys]


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


def _printable(path: Path) -> str:
    return str(path).encode("utf-8", "replace").decode()
