"""The one reader of records: JSON lines, rows of tables, text files and pages, in whole or by range."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from groundup.core.compressed import DamagedFile, RecordedFile
from groundup.corpus import line_blocks
from groundup.corpus.bad_records import DAMAGED_FILE
from groundup.corpus.extraction.limits import ExtractionFailure
from groundup.corpus.extraction.main_text import WebPage
from groundup.corpus.extraction.page_reader import PageExtractor
from groundup.corpus.html_folder import read_html
from groundup.corpus.line_blocks import LineBlocks, MalformedRecord, OnRead, decompressed, lines_in
from groundup.corpus.parquet import read_rows
from groundup.corpus.source_ranges import SourceRange
from groundup.corpus.sources import form_of
from groundup.corpus.text_key import proposed_key
from groundup.corpus.warc import read_warc


class Record(NamedTuple):
    """A record of a file.

    Attributes:
        line: Line or row in the file, from 1; 0 for a text file. Of a range of plain lines, counted from
            ``lines_before`` of the range.
        fields: The JSON object, or the row, whose strings are bytes. The text of a text file stands under the
            text key. Empty where the record is malformed.
        raw: The bytes that were read, where the record is a line or a malformed text file.
        problem: What is wrong with it.
        failure: Why a page gives no text; then its text is empty.
    """

    line: int
    fields: dict[str, Any]
    raw: bytes
    problem: MalformedRecord | None
    failure: ExtractionFailure | None = None


class RecordReader:
    """Reads the records of a file, or of a range of it, in about one block of memory.

    Args:
        source: What to read.
        text_key: The field under which the text of a text file is given.
        columns: Columns of a Parquet file that are wanted, ``url`` or ``meta.url`` coming with them; None
            for all.
        on_read: Told the bytes taken from disk.
        recorded: What the whole file must be, by a manifest.
        pages: What makes a document of a page; None takes one for this file alone.

    Attributes:
        lines: When all is read: the number of the last line.

    Raises:
        DataError: The file cannot be read, is of a kind that is not read, or has not these columns.
    """

    def __init__(
        self,
        source: SourceRange,
        text_key: str,
        columns: Sequence[str] | None = None,
        *,
        on_read: OnRead | None = None,
        recorded: RecordedFile | None = None,
        pages: PageExtractor | None = None,
    ) -> None:
        self.lines = source.lines_before
        self._source = source
        self._text_key = text_key
        self._columns = columns
        self._on_read = on_read or (lambda size: None)
        self._recorded = recorded
        self._pages = pages

    def __iter__(self) -> Iterator[Record]:
        form = form_of(self._source.file.path)
        if self._pages:
            form = self._pages.settings.form(form)
        match form:
            case "lines":
                yield from self._lines()
            case "text":
                yield self._text()
            case "rows":
                yield from self._rows()
            case _:
                yield from self._documents_of_pages()

    def _documents_of_pages(self) -> Iterator[Record]:
        with contextlib.nullcontext(self._pages) if self._pages else PageExtractor() as extract:
            try:
                for page in read_pages(self._source, self._on_read):
                    self.lines = page.number
                    yield self._of_page(page, extract)
            except DamagedFile as error:
                yield Record(self.lines, {}, b"", MalformedRecord(DAMAGED_FILE, error.what))
            except MalformedRecord as error:
                yield Record(self.lines, {}, b"", error)

    def _of_page(self, page: WebPage, extract: PageExtractor) -> Record:
        try:
            document = extract(page)
        except ExtractionFailure as failure:
            fields = {**page.meta, "id": page.id, "url": page.url, self._text_key: ""}
            return Record(page.number, fields, b"", None, failure)
        fields = {**document.meta, "id": document.id, "url": document.url, self._text_key: document.text}
        return Record(page.number, fields, b"", None)

    def _text(self) -> Record:
        with decompressed(self._source.file.path, on_read=self._on_read, recorded=self._recorded) as stream:
            content = b""
            try:
                content = stream.read(line_blocks.MAX_RECORD_BYTES + 1)
                return Record(0, {self._text_key: _text_of_file(content)}, b"", None)
            except DamagedFile as error:
                return Record(0, {}, b"", MalformedRecord(DAMAGED_FILE, error.what))
            except MalformedRecord as error:
                return Record(error.line, {}, content, error)

    def _rows(self) -> Iterator[Record]:
        source = self._source
        try:
            for rows, share in read_rows(
                source.file.path, self._columns, begin=source.begin, end=source.end, required=self._text_key
            ):
                for fields in rows:
                    self.lines += 1
                    yield Record(self.lines, fields, b"", None)
                self._on_read(round(share * source.size_bytes))
        except DamagedFile as error:
            yield Record(self.lines + 1, {}, b"", MalformedRecord(DAMAGED_FILE, error.what))

    def _lines(self) -> Iterator[Record]:
        source = self._source
        blocks = LineBlocks(source, self._on_read)
        recorded = None if source.end else self._recorded  # who stops early cannot compare the whole
        with decompressed(source.file.path, on_read=blocks.advance, recorded=recorded) as stream:
            for content, problem in blocks.of(stream):
                first = self.lines
                if problem:
                    self.lines += 1
                    yield Record(self.lines, {}, b"", problem)
                elif content is None:  # lines of a range before
                    self.lines += blocks.skipped_lines
                else:
                    for line in content.split(b"\n"):
                        self.lines += 1
                        if line and not line.isspace():
                            yield _record_of_line(self.lines, line)
                    self.lines = first + lines_in(content)


def read_pages(source: SourceRange, on_read: OnRead = lambda size: None) -> Iterator[WebPage]:
    """The pages of a WARC file or a range of it, or the page of an HTML file.

    Raises:
        DamagedFile: It breaks off; what was yielded is good.
        MalformedRecord: The page is too long.
        DataError: The file cannot be read.
    """
    if form_of(source.file.path) == "warc":
        yield from read_warc(source.file.path, source.begin, source.end, on_read)
    else:
        yield read_html(source.file, on_read)


def _record_of_line(number: int, line: bytes) -> Record:
    try:
        return Record(number, _object_of(line), line, None)
    except MalformedRecord as error:
        return Record(number, {}, line, error)


def text_under(text_key: str, fields: Mapping[str, Any]) -> str:
    """The text of a record.

    Raises:
        MalformedRecord: There is none under the key, it is no string, or not UTF-8.
    """
    if text_key not in fields:
        keys = ", ".join(list(fields)[:8]) or "none"
        near = proposed_key(text_key, fields)
        hint = f"; the text may be under {near!r}" if near else ""
        raise MalformedRecord("no text key", f"no key {text_key!r}; the keys are: {keys}{hint}")
    text = fields[text_key]
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord("not UTF-8", f"{error.reason} at byte {error.start:,}") from None
    given = "null" if text is None else f"of type {type(text).__name__}"
    raise MalformedRecord("text is not a string", f"{text_key!r} is {given}")


def url_of(fields: Mapping[str, Any]) -> str:
    """The field ``url`` or else ``meta.url`` of a record; empty where there is none."""
    url = fields.get("url")
    if url is None and isinstance(meta := fields.get("meta"), dict):
        url = meta.get("url")
    if isinstance(url, bytes):
        return url.decode(errors="replace")
    return url if isinstance(url, str) else ""


def _text_of_file(content: bytes) -> str:
    if len(content) > line_blocks.MAX_RECORD_BYTES:
        raise MalformedRecord(
            "too long", f"over {line_blocks.MAX_RECORD_BYTES:,} bytes; split it or write it as JSONL"
        )
    if (nul := content.find(b"\0")) >= 0:
        raise MalformedRecord("NUL byte", f"at byte {nul:,}: a binary file or UTF-16")
    try:
        return content.removeprefix(line_blocks.BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise MalformedRecord("not UTF-8", f"{error.reason} at byte {error.start:,}", line) from None


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
