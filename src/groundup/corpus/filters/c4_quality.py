"""Removes lines that are no sentences, and drops pages that are none, by the rules of C4."""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop

_ENDS = (".", "?", "!", '"', "”")
_POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
_CITATION = re.compile(r"\[\d+\]|\[edit\]|\[citation needed\]")
_SENTENCE_END = re.compile(r"[.?!]+[\"'”’)\]]*(?=\s|$)")


@config
class C4Quality:
    """Keeps the lines that are sentences, by Raffel et al. 2020 (arXiv:1910.10683, section 2.2).

    Lines are removed that do not end in a terminal punctuation mark, that have few words, that speak of
    JavaScript, or that are notices about policies and cookies; citation marks of Wikipedia go. Pages are
    dropped that hold placeholder text or a curly bracket, or of which few sentences are left. Sentences are
    counted by their ends.

    Attributes:
        min_sentences: The fewest sentences of a page.
        min_words_per_line: The fewest words of a line.
        max_word_characters: Lines with a longer word are removed.
        terminal_punctuation: Remove lines that end otherwise.
        javascript: Remove lines that speak of JavaScript.
        policies: Remove notices about cookies, privacy and terms of use.
        citations: Remove marks such as ``[3]`` and ``[citation needed]``.
        curly_brackets: Drop pages with one, which are program code more often than prose.
    """

    kind: Literal["c4_quality"] = "c4_quality"
    min_sentences: NotNegative = 5
    min_words_per_line: NotNegative = 3
    max_word_characters: Positive = 1000
    terminal_punctuation: bool = True
    javascript: bool = True
    policies: bool = True
    citations: bool = True
    curly_brackets: bool = True

    def apply(
        self, document: Document
    ) -> Document | Drop[Literal["lorem ipsum", "curly bracket", "too few sentences"]]:
        """Returns the document with the lines that are left, or the rule that it breaks."""
        text = document.text
        if self.curly_brackets and "{" in text:
            return Drop("curly bracket")
        if "lorem ipsum" in text.lower():
            return Drop("lorem ipsum")
        if self.citations and "[" in text:
            text = _CITATION.sub("", text)
        lower = text.lower()  # a mark that is not in the text is in no line
        marks = [mark for mark in self._marks if mark in lower]
        text = "\n".join(line for line in map(str.strip, text.split("\n")) if self._keeps(line, marks))
        if (
            sum(1 for _ in itertools.islice(_SENTENCE_END.finditer(text), self.min_sentences))
            < self.min_sentences
        ):
            return Drop("too few sentences")
        return document if text == document.text else dataclasses.replace(document, text=text)

    @property
    def _marks(self) -> tuple[str, ...]:
        """A line with one of them is removed."""
        return (*(("javascript",) if self.javascript else ()), *(_POLICIES if self.policies else ()))

    def _keeps(self, line: str, marks: Sequence[str]) -> bool:
        if self.terminal_punctuation and (not line.endswith(_ENDS) or line.endswith("...")):
            return False
        if (
            self.min_words_per_line
            and len(line.split(None, self.min_words_per_line)) < self.min_words_per_line
        ):
            return False
        if len(line) > self.max_word_characters and max(map(len, line.split())) > self.max_word_characters:
            return False
        lower = line.lower() if marks else ""
        return not any(mark in lower for mark in marks)
