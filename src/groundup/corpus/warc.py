"""Pages of WARC files, the archives of crawls (ISO 28500), read and written."""

import datetime
import http
import io
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from groundup.core.compressed import DamagedFile
from groundup.corpus.extraction.main_text import WebPage
from groundup.corpus.line_blocks import OnRead, decompressed
from groundup.corpus.sources import printable

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecord

_PAGE_TYPES = ("text/html", "application/xhtml+xml", "text/plain", "")
_NOT_KEPT = frozenset({b"content-encoding", b"transfer-encoding", b"content-length"})
_MAX_RECORD_BYTES = 64 << 20


def read_warc(
    path: Path, begin: int = 0, end: int = 0, on_read: OnRead = lambda size: None
) -> Iterator[WebPage]:
    """The pages of a file, in order: responses with status 200 of HTML or text, and texts of WET files.

    ``meta["origin"]`` is ``file:number``, the number counting all records; ``meta["fetched"]`` is the time of
    the record. A page belongs to the range of the file that was reached when the reading of it began: whoever
    reads one range reads all before it too, which takes little beside finding the main text of its pages.

    Args:
        path: Of a .warc or .wet file, plain or with .gz or .zst.
        begin: First byte on disk of the range.
        end: One past the last; 0 for the end of the file.
        on_read: Told the bytes taken from disk.

    Raises:
        DamagedFile: It is cut off or damaged, or no WARC file. What was yielded is good.
        DataError: It cannot be read.
    """
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    disk = _Disk(begin, end or path.stat().st_size, on_read)
    with decompressed(path, on_read=disk.advance) as stream:
        head = stream.peek(5)[:5]  # type: ignore[attr-defined]
        if head and head != b"WARC/":
            raise DamagedFile(f"begins with {head!r}, not with WARC/", where=path)
        records = ArchiveIterator(
            _Readable(stream), record_types=WarcRecordType.any_type, parse_http=False, fsspec_args=False
        )
        began = number = 0
        try:
            for record in records:
                number += 1
                if "Content-Length" not in record.headers:
                    raise OSError("the header is not complete")
                if end and began >= end:
                    return
                # Read alike by all ranges, so that all agree where the next record begins.
                if record.content_length <= _MAX_RECORD_BYTES:
                    record.freeze()
                else:
                    record.reader.consume()
                if began >= begin:
                    yield from _page_of(record, path.name, f"{printable(path)}:{number}", number)
                began = disk.at
        except (OSError, DamagedFile) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if began < begin:
                return  # told by the range in which it is
            if isinstance(error, DamagedFile):
                raise
            raise DamagedFile(f"damaged in or after record {number} ({error})", where=path) from None


class _Disk:
    """Counts the bytes taken from disk, and reports those of a range."""

    def __init__(self, begin: int, end: int, on_read: OnRead) -> None:
        self.at = 0
        self._left = end - begin
        self._begin = begin
        self._on_read = on_read

    def advance(self, size: int) -> None:
        self.at += size
        if self.at > self._begin:
            reported = min(size, self._left)
            self._left -= reported
            self._on_read(reported)


def _page_of(record: "WarcRecord", name: str, origin: str, number: int) -> Iterator[WebPage]:
    """The page of a record, if it is one."""
    from fastwarc.warc import WarcRecordType

    kinds = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion
    if not record.record_type & kinds or record.content_length > _MAX_RECORD_BYTES:
        return
    if str(record.content_length) != (record.headers.get("Content-Length") or "").strip():
        raise OSError("it ends early")
    content_type = record.headers.get("Content-Type") or ""
    if record.is_http:
        record.parse_http(auto_decode="all")
        if record.http_headers.status_code != http.HTTPStatus.OK:
            return
        content_type = record.http_headers.get("Content-Type") or ""
    if content_type.partition(";")[0].strip().lower() in _PAGE_TYPES:
        url = (record.headers.get("WARC-Target-URI") or "").strip("<>")
        meta = {"origin": origin, "fetched": record.headers.get("WARC-Date") or ""}
        body = record.reader.read(_MAX_RECORD_BYTES)
        yield WebPage(url or f"{name}:{number}", url, body, content_type, meta, number)


class _Readable:
    """What fastwarc asks of a stream; one that says that it cannot seek is refused."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(size)
        self._position += len(content)
        return content

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        raise OSError("read forward only")

    def close(self) -> None:
        self._stream.close()


def page_record(
    url: str,
    status: int,
    headers: tuple[tuple[bytes, bytes], ...],
    body: bytes,
    when: datetime.datetime,
) -> bytes:
    """A page as a gzip member that is a record of a WARC file.

    Args:
        url: That was asked for.
        status: Of HTTP.
        headers: As served; those of encodings that are undone are renamed, as Common Crawl does.
        body: Without content or transfer encoding.
        when: It was fetched, in UTC.
    """
    from fastwarc.stream_io import GzipWriter
    from fastwarc.warc import WarcRecord, WarcRecordType

    kept = [(b"X-Crawler-" + name if name.lower() in _NOT_KEPT else name, value) for name, value in headers]
    lines = [f"HTTP/1.1 {status} {_phrase(status)}".encode(), *(b"%s: %s" % pair for pair in kept)]
    head = b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"\r\n"])
    record = WarcRecord()
    record.init_headers(record_type=WarcRecordType.response, record_urn=str(uuid.uuid4()).encode())
    record.headers["WARC-Target-URI"] = url
    record.headers["WARC-Date"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    record.headers["Content-Type"] = "application/http; msgtype=response"
    record.set_bytes_content(head + body)
    out = io.BytesIO()
    with GzipWriter(out) as member:
        record.write(member, checksum_data=True)
    return out.getvalue()


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return ""
