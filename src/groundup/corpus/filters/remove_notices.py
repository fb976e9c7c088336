"""Removes lines that browsers and laws put on pages: notices about JavaScript, cookies and terms."""

import dataclasses
import re
from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop

_NOTICE = re.compile(
    r"javascript (?:is|must be|needs to be|has been) (?:currently )?(?:disabled|enabled|required|turned)"
    r"|(?:enable|activate|turn on|requires?|without|supports?) javascript"
    r"|(?:uses?|using|accept(?:ing)?|store|our|of|all|manage|these) cookies"
    r"|cookie (?:policy|settings|preferences|notice|consent)"
    r"|privacy policy|terms of (?:use|service)|all rights reserved"
    r"|your browser (?:is|does|doesn't|may)|ad ?blocker"
)
_MARKS = ("javascript", "cookie", "policy", "terms of", "rights reserved", "your browser", "blocker")
"""One of them stands in every notice; looking for them is 20 times as fast."""


@config
class RemoveNotices:
    """Removes short lines that are notices about JavaScript, cookies, browsers, privacy and rights.

    A longer line that speaks of such things is taken for text about them.

    Attributes:
        max_words: A line of more words stays.
        min_words_left: Drop a text that loses lines and has fewer words left.
    """

    kind: Literal["remove_notices"] = "remove_notices"
    max_words: Positive = 40
    min_words_left: NotNegative = 20

    def apply(self, document: Document) -> Document | Drop[Literal["only notices"]]:
        """Returns the document without its notices, or says that it is nothing else."""
        lower = document.text.lower()
        if not any(mark in lower for mark in _MARKS):
            return document
        lines = document.text.split("\n")
        kept = [line for line in lines if not self._is_notice(line)]
        if len(kept) == len(lines):
            return document
        text = "\n".join(kept)
        if len(text.split()) < self.min_words_left:
            return Drop("only notices")
        return dataclasses.replace(document, text=text)

    def _is_notice(self, line: str) -> bool:
        lower = line.lower()
        marked = any(mark in lower for mark in _MARKS)
        return marked and bool(_NOTICE.search(lower)) and len(line.split()) <= self.max_words
