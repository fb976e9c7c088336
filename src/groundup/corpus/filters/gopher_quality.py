"""Drops texts by the quality rules of MassiveText (Gopher)."""

from collections.abc import Sequence
from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import NotNegative, NotNegativeFloat, Positive, Ratio
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop
from groundup.corpus.split_words import split_words

_WORDS_AT_ONCE = 64

_REASONS = Literal[
    "too few words",
    "too many words",
    "words too short",
    "words too long",
    "too many symbols",
    "too many bullets",
    "too many ellipses",
    "too few alphabetic words",
    "too few stop words",
]


@config
class GopherQuality:
    """Drops texts that are no prose, by the rules and bounds of Rae et al. 2021 (arXiv:2112.11446, A1.1).

    Words are what stands between white space: rules about words say nothing of Chinese or Japanese text.

    Attributes:
        min_words: The fewest words.
        max_words: The most words.
        min_mean_word_characters: The shortest mean length of a word.
        max_mean_word_characters: The longest mean length of a word.
        max_symbols_per_word: The most hash signs, and the most ellipses, for each word.
        bullets: What a bullet point begins with.
        max_bullet_lines: The largest part of the lines that begin with a bullet.
        max_ellipsis_lines: The largest part of the lines that end with an ellipsis.
        min_alphabetic_words: The smallest part of the words that hold a letter.
        stop_words: Words that prose of the language cannot do without.
        min_stop_words: The fewest different ones of them.
    """

    kind: Literal["gopher_quality"] = "gopher_quality"
    min_words: NotNegative = 50
    max_words: Positive = 100_000
    min_mean_word_characters: NotNegativeFloat = 3.0
    max_mean_word_characters: NotNegativeFloat = 10.0
    max_symbols_per_word: NotNegativeFloat = 0.1
    bullets: tuple[str, ...] = ("•", "-")
    max_bullet_lines: Ratio = 0.9
    max_ellipsis_lines: Ratio = 0.3
    min_alphabetic_words: Ratio = 0.8
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")
    min_stop_words: NotNegative = 2

    def apply(self, document: Document) -> Document | Drop[_REASONS]:
        """Returns the document itself, or the first rule that it breaks."""
        reason = self._of_words(document.text) or self._of_lines(document.text)
        return Drop(reason) if reason else document

    def _of_words(self, text: str) -> _REASONS | None:
        words = split_words(text)
        count = len(words)
        if count < max(self.min_words, 1):
            return "too few words"
        if count > self.max_words:
            return "too many words"
        mean = sum(map(len, words)) / count
        if mean < self.min_mean_word_characters:
            return "words too short"
        if mean > self.max_mean_word_characters:
            return "words too long"
        ellipses = text.count("...") + text.count("…")
        if max(text.count("#"), ellipses) > self.max_symbols_per_word * count:
            return "too many symbols"
        if not _has_alphabetic(words, self.min_alphabetic_words * count):
            return "too few alphabetic words"
        if not self._has_stop_words(words):
            return "too few stop words"
        return None

    def _has_stop_words(self, words: Sequence[str]) -> bool:
        wanted, found = set(self.stop_words), set[str]()
        for begin in range(0, len(words), _WORDS_AT_ONCE):  # the first of them have enough as a rule
            if len(found) >= self.min_stop_words:
                break
            found |= wanted.intersection(map(str.lower, words[begin : begin + _WORDS_AT_ONCE]))
        return len(found) >= self.min_stop_words

    def _of_lines(self, text: str) -> _REASONS | None:
        lines = [line.strip() for line in text.split("\n")]
        lines = [line for line in lines if line]
        if sum(line.startswith(self.bullets) for line in lines) > self.max_bullet_lines * len(lines):
            return "too many bullets"
        if sum(line.endswith(("...", "…")) for line in lines) > self.max_ellipsis_lines * len(lines):
            return "too many ellipses"
        return None


def _has_alphabetic(words: Sequence[str], at_least: float) -> bool:
    """Whether so many words hold a letter."""
    if sum(map(str.isalpha, words)) >= at_least:  # quick, and true of most prose
        return True
    return sum(word.isalpha() or any(map(str.isalpha, word)) for word in words) >= at_least
