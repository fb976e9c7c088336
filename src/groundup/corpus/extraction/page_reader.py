"""The main text of the pages that a task reads, each found in a process that may be killed over it."""

import functools
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from groundup.core.config_class import Positive, config
from groundup.core.errors import ConfigError
from groundup.corpus.document import Document
from groundup.corpus.extraction.limits import ExtractionFailure, ExtractionLimits
from groundup.corpus.extraction.main_text import Engine, WebPage, extract_document, require_engine
from groundup.corpus.sources import Form

if TYPE_CHECKING:
    from groundup.corpus.extraction.worker_pool import ExtractionPool


@config
class PageReading:
    """How pages, of WARC files and of HTML files, become documents.

    Attributes:
        engine: What finds the main text; ``none`` reads HTML files as the text that they are.
        min_characters: Pages with less main text give no document.
        only: Of folders, read pages and nothing else; and take a named file of any other ending for HTML.
        limits: For each page.
    """

    engine: Engine | Literal["none"] = "trafilatura"
    min_characters: Positive = 200
    only: bool = False
    limits: ExtractionLimits = ExtractionLimits()

    def form(self, form: Form) -> Form:
        """How a file of this form is read by these settings."""
        if form == "html" and self.engine == "none":
            return "text"
        return "html" if self.only and form != "warc" else form


class PageExtractor:
    """Gives the document of a page; its process is started by the first, and ended with the block."""

    def __init__(self, settings: PageReading | None = None) -> None:
        self.settings = settings or PageReading()
        self._pool: ExtractionPool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.__exit__(kind, error, trace)
            self._pool = None

    def __call__(self, page: WebPage) -> Document:
        """The page's document.

        Raises:
            ExtractionFailure: It gives none, and why.
            ConfigError: Nothing is chosen that finds main text.
            MachineError: The library is not installed.
        """
        document = (self._pool or self._start(page))(page)
        if len(document.text) < self.settings.min_characters:
            raise ExtractionFailure("no main text", f"{len(document.text)} characters")
        return document

    def _start(self, page: WebPage) -> "ExtractionPool":
        from groundup.corpus.extraction.worker_pool import ExtractionPool

        engine = self.settings.engine
        if engine == "none":
            raise ConfigError(
                "pages of WARC files become documents by an engine, and none is chosen",
                where=page.meta["origin"],
                fix="Choose trafilatura or resiliparse.",
            )
        require_engine(engine)
        extract = functools.partial(extract_document, engine=engine)
        self._pool = ExtractionPool(extract, 1, self.settings.limits, preload=(engine,))
        return self._pool
