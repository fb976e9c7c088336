"""The main text of one page, by a library: trafilatura, or resiliparse, which is faster and less exact."""

import dataclasses
import html
import importlib
import logging
import re
from typing import Any, Literal

from groundup.core.errors import MachineError
from groundup.corpus.document import Document
from groundup.corpus.extraction.charset import decode_page

Engine = Literal["trafilatura", "resiliparse"]

_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
_LANGUAGE = re.compile(
    r"""<html\b[^>]*?\s(?:xml:)?lang\s*=\s*["']?([A-Za-z]{2,3}(?:[-_]\w+)*)""", re.IGNORECASE
)
_MAX_TITLE_CHARACTERS = 500
_HEAD_CHARACTERS = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class WebPage:
    """A page as served.

    Attributes:
        id: Names the page within its source.
        url: Where it was served from; empty when unknown.
        body: Without content encoding (gzip).
        content_type: The header of that name; empty when unknown.
        meta: What else is known of it, for the document.
        number: Of its record in a file of several; 0 where the file is the page.
    """

    id: str
    url: str
    body: bytes
    content_type: str = ""
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)
    number: int = 0


def extract_document(page: WebPage, engine: Engine) -> Document:
    """The page's main text as a document, empty where there is none.

    Its meta is the page's with ``charset`` and, where the page names them, ``title`` and ``language``.
    """
    text, charset = decode_page(page.body, page.content_type)
    meta = {**page.meta, "charset": charset}
    if is_plain_text(page.content_type):
        return Document(page.id, page.url, _sound(text), meta)
    head = text[:_HEAD_CHARACTERS]
    if title := _TITLE.search(head):
        meta["title"] = _sound(" ".join(html.unescape(title[1]).split()))[:_MAX_TITLE_CHARACTERS]
    if language := _LANGUAGE.search(head):
        meta["language"] = language[1]
    main_text = _by_trafilatura(text) if engine == "trafilatura" else _by_resiliparse(text)
    return Document(page.id, page.url, _sound(main_text), meta)


def require_engine(engine: Engine) -> None:
    """Refuses to begin with a library that would fail on every page.

    Raises:
        MachineError: It is not installed, or something that it needs.
    """
    try:
        for name in (engine, "resiliparse.parse.encoding"):
            importlib.import_module(name)
    except ImportError as error:
        what = " ".join(str(error).split())
        raise MachineError(
            f"{engine} cannot be used ({what})", where="engine", fix="Type: pip install 'groundup[crawl]'"
        ) from None


def is_plain_text(content_type: str) -> bool:
    """Whether a content type says that there is no markup."""
    return content_type.partition(";")[0].strip().lower() == "text/plain"


def _by_trafilatura(text: str) -> str:
    import trafilatura

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it tells of pages that are empty or no HTML
    return trafilatura.extract(text, fast=True, include_comments=False) or ""


def _by_resiliparse(text: str) -> str:
    from resiliparse.extract.html2text import extract_plain_text

    return extract_plain_text(text, main_content=True, alt_texts=False)


def _sound(text: str) -> str:
    """Valid Unicode without NUL: character references may name lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode().strip()
