"""Pages of folders of HTML files."""

from groundup.corpus.extraction.main_text import WebPage
from groundup.corpus.line_blocks import MalformedRecord, OnRead, decompressed
from groundup.corpus.sources import SourceFile, printable

MAX_PAGE_BYTES = 64 << 20


def read_html(file: SourceFile, on_read: OnRead | None = None) -> WebPage:
    """The page of a file, also .gz or .zst; its id is the name within its source, its origin the path.

    Raises:
        MalformedRecord: Over 64 MiB.
        DamagedFile: The compressed stream is damaged.
        DataError: It cannot be read.
    """
    with decompressed(file.path, on_read=on_read) as stream:
        body = stream.read(MAX_PAGE_BYTES + 1)
    if len(body) > MAX_PAGE_BYTES:
        raise MalformedRecord("too long", f"a page of over {MAX_PAGE_BYTES >> 20} MiB")
    return WebPage(file.name, "", body, "", {"origin": printable(file.path)})
