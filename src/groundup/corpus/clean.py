"""The stage that runs filters: each document is repaired, edited, or dropped with a reason."""

from typing import Literal

from groundup.core.config import config
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop
from groundup.corpus.filters import Filter
from groundup.corpus.shard import ShardWriter
from groundup.corpus.stage import MapStage


@config
class Clean(MapStage):
    """Runs filters over every document; one without text at their end is dropped in any case.

    Attributes:
        filters: In this order.
    """

    kind: Literal["clean"] = "clean"
    filters: tuple[Filter, ...] = ()

    def process(self, document: Document, out: ShardWriter) -> None:
        """Keeps what passes all filters."""
        kept, rule, drop = self._verdict(document, out)
        if drop:
            out.drop(kept, rule, drop.reason, drop.detail)
        else:
            out.keep(kept)

    def _verdict(self, document: Document, out: ShardWriter) -> tuple[Document, str, Drop[str] | None]:
        """The edited document, and the rule and reason by which it is dropped (None when it is kept)."""
        for step in self.filters:
            result = step.apply(document)
            if isinstance(result, Drop):
                return document, step.kind, result
            if result.text != document.text:
                out.tally.edit(step.kind)
            document = result
        if not document.text or document.text.isspace():
            return document, "empty", Drop("no text")
        return document, "", None
