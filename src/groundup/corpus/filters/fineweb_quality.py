"""Drops texts that are lists or menus more than prose, by the rules of FineWeb."""

from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import NotNegativeFloat, Positive, Ratio
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop
from groundup.corpus.split_words import split_words

_ENDS = (".", "?", "!", '"', "'", "”", "’", "。", "？", "！", "…")


@config
class FineWebQuality:
    """Drops lists and menus, by the three rules of Penedo et al. 2024 (arXiv:2406.17557, section 3.5).

    Attributes:
        min_punctuated_lines: The smallest part of the lines that end in punctuation.
        max_duplicate_line_characters: The largest part of the characters that stand in duplicate lines.
        short_line_characters: A line of fewer characters is short.
        max_short_lines: The largest part of the lines that are short.
        max_lines_per_word: The most line ends for each word (from the published code).
    """

    kind: Literal["fineweb_quality"] = "fineweb_quality"
    min_punctuated_lines: Ratio = 0.12
    max_duplicate_line_characters: Ratio = 0.1
    short_line_characters: Positive = 30
    max_short_lines: Ratio = 0.67
    max_lines_per_word: NotNegativeFloat = 0.3

    def apply(
        self, document: Document
    ) -> (
        Document
        | Drop[
            Literal[
                "no text",
                "too few punctuated lines",
                "too many short lines",
                "characters in duplicate lines",
                "too many lines",
            ]
        ]
    ):
        """Returns the document itself, or the first rule that it breaks."""
        lines = [line for line in document.text.split("\n") if line.strip()]
        if not lines:
            return Drop("no text")
        if sum(line.rstrip().endswith(_ENDS) for line in lines) < self.min_punctuated_lines * len(lines):
            return Drop("too few punctuated lines")
        if sum(len(line) < self.short_line_characters for line in lines) > self.max_short_lines * len(lines):
            return Drop("too many short lines")
        characters = sum(map(len, lines))
        if characters - sum(map(len, set(lines))) > self.max_duplicate_line_characters * characters:
            return Drop("characters in duplicate lines")
        if document.text.count("\n") > self.max_lines_per_word * len(split_words(document.text)):
            return Drop("too many lines")
        return document
