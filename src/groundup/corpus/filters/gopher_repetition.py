"""Drops texts that repeat themselves, by the rules of MassiveText (Gopher)."""

import dataclasses
import re
from collections import Counter
from typing import Literal

import numpy as np
import numpy.typing as npt

from groundup.core.config import config
from groundup.core.config_class import Ratio
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop
from groundup.corpus.window_hashes import window_hashes

_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")

_REASONS = Literal[
    "duplicate lines",
    "duplicate paragraphs",
    "characters in duplicate lines",
    "characters in duplicate paragraphs",
    "characters in the most frequent n-gram",
    "characters in duplicate n-grams",
]


@config
class GopherRepetition:
    """Drops texts that repeat themselves, by the bounds of Rae et al. 2021 (arXiv:2112.11446, table A1).

    A line, paragraph or n-gram is a duplicate where an equal one stands before it. Fractions of n-grams are
    of the characters of all words, and no word of a duplicate counts twice.

    Attributes:
        max_duplicate_lines: The largest part of the lines that are duplicates.
        max_duplicate_paragraphs: The same for paragraphs.
        max_duplicate_line_characters: The largest part of the characters that stand in duplicate lines.
        max_duplicate_paragraph_characters: The same for paragraphs.
        max_top_ngram_characters: n -> the largest part of the characters that the most frequent n-gram has.
        max_duplicate_ngram_characters: n -> the largest part of the characters in duplicate n-grams.
    """

    kind: Literal["gopher_repetition"] = "gopher_repetition"
    max_duplicate_lines: Ratio = 0.30
    max_duplicate_paragraphs: Ratio = 0.30
    max_duplicate_line_characters: Ratio = 0.20
    max_duplicate_paragraph_characters: Ratio = 0.20
    max_top_ngram_characters: dict[int, Ratio] = dataclasses.field(
        default_factory=lambda: {2: 0.20, 3: 0.18, 4: 0.16}
    )
    max_duplicate_ngram_characters: dict[int, Ratio] = dataclasses.field(
        default_factory=lambda: {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    )

    def __post_init__(self) -> None:
        if min((*self.max_top_ngram_characters, *self.max_duplicate_ngram_characters), default=1) < 1:
            raise ValueError("an n-gram has at least one word")

    def apply(self, document: Document) -> Document | Drop[_REASONS]:
        """Returns the document itself, or the first rule that it breaks."""
        reason = self._of_lines(document.text) or self._of_ngrams(document.text)
        return Drop(reason) if reason else document

    def _of_lines(self, text: str) -> _REASONS | None:
        text = text.strip()
        parts, characters = _duplicates(_PARAGRAPHS.split(text))
        if parts > self.max_duplicate_paragraphs:
            return "duplicate paragraphs"
        if characters > self.max_duplicate_paragraph_characters:
            return "characters in duplicate paragraphs"
        parts, characters = _duplicates(_LINES.split(text))
        if parts > self.max_duplicate_lines:
            return "duplicate lines"
        if characters > self.max_duplicate_line_characters:
            return "characters in duplicate lines"
        return None

    def _of_ngrams(self, text: str) -> _REASONS | None:
        words = text.split()
        if not words:
            return None
        known: dict[str, int] = {}
        numbers = np.array([known.setdefault(word, len(known)) for word in words], np.uint64)
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        total = int(lengths.sum())
        for n, bound in self.max_top_ngram_characters.items():
            if _top_ngram_characters(_ngrams(numbers, n), lengths, n) > bound * total:
                return "characters in the most frequent n-gram"
        smallest = min(self.max_duplicate_ngram_characters.values(), default=1.0)
        for n, bound in sorted(self.max_duplicate_ngram_characters.items()):
            covered = _duplicate_ngram_characters(_ngrams(numbers, n), lengths, n)
            if covered > bound * total:
                return "characters in duplicate n-grams"
            if covered <= smallest * total:
                break  # duplicates of more words consist of those of fewer, and cover no more
        return None


def _duplicates(pieces: list[str]) -> tuple[float, float]:
    """The part of the pieces, and of their characters, that stood before."""
    seen = Counter(pieces)
    if len(seen) == len(pieces):
        return 0.0, 0.0
    repeated = sum((count - 1) * len(piece) for piece, count in seen.items())
    return 1 - len(seen) / len(pieces), repeated / max(1, sum(map(len, pieces)))


def _ngrams(numbers: npt.NDArray[np.uint64], n: int) -> npt.NDArray[np.int64]:
    """For each position, the number of the first position at which its n-gram stands."""
    count = len(numbers) - n + 1
    if count <= 1:
        return np.arange(max(count, 0))
    hashes = window_hashes(numbers, n)  # 64 bits for at most some million n-grams of a text
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    return first[inverse]


def _top_ngram_characters(first: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], n: int) -> int:
    if not len(first):
        return 0
    counts = np.bincount(first)
    top = int(counts.max())
    if top == 1:
        return 0
    sums = np.convolve(lengths, np.ones(n, np.int64), "valid")
    return top * int(sums[: len(counts)][counts == top].max())


def _duplicate_ngram_characters(first: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], n: int) -> int:
    repeats = np.flatnonzero(first < np.arange(len(first)))
    if not len(repeats):
        return 0
    change = np.zeros(len(lengths) + 1, np.int64)
    change[repeats] += 1
    change[repeats + n] -= 1
    return int(lengths[np.cumsum(change[:-1]) > 0].sum())
