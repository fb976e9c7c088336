"""Pages of folders of HTML files."""

from groundup.core.compressed import open_decompressed
from groundup.core.errors import DataError
from groundup.corpus.extraction.main_text import WebPage
from groundup.corpus.sources import SourceFile, printable

HTML_ENDINGS = frozenset({".html", ".htm", ".xhtml"})
MAX_PAGE_BYTES = 64 << 20


def read_html(file: SourceFile) -> WebPage:
    """The page of a file, also .gz or .zst; its id is the name within its source, its origin the path.

    Raises:
        DataError: It is damaged, or over 64 MiB.
    """
    with open_decompressed(file.path) as stream:
        body = stream.read(MAX_PAGE_BYTES + 1)
    if len(body) > MAX_PAGE_BYTES:
        raise DataError(f"over {MAX_PAGE_BYTES >> 20} MiB", where=file.path, fix="Leave the file out.")
    return WebPage(file.name, "", body, "", {"origin": printable(file.path)})
