"""Drops texts that repeat themselves, by the rules of MassiveText (Gopher)."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from groundup.core.config import config
from groundup.core.config_class import Ratio
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop
from groundup.corpus.split_words import split_words
from groundup.corpus.window_hashes import window_hashes

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
        parts, characters = _duplicates([part.lstrip("\n") for part in text.split("\n\n")])
        if parts > self.max_duplicate_paragraphs:
            return "duplicate paragraphs"
        if characters > self.max_duplicate_paragraph_characters:
            return "characters in duplicate paragraphs"
        parts, characters = _duplicates(text.split("\n"))
        if parts > self.max_duplicate_lines:
            return "duplicate lines"
        if characters > self.max_duplicate_line_characters:
            return "characters in duplicate lines"
        return None

    def _of_ngrams(self, text: str) -> _REASONS | None:
        words = split_words(text)
        if not words:
            return None
        ngrams = _Ngrams(words)
        total = int(ngrams.lengths.sum())
        for n, bound in self.max_top_ngram_characters.items():
            if ngrams.top_characters(n, bound * total) > bound * total:
                return "characters in the most frequent n-gram"
        smallest = min(self.max_duplicate_ngram_characters.values(), default=1.0)
        for n, bound in sorted(self.max_duplicate_ngram_characters.items()):
            covered = ngrams.duplicate_characters(n, smallest * total)
            if covered > bound * total:
                return "characters in duplicate n-grams"
            if covered <= smallest * total:
                break  # duplicates of more words consist of those of fewer, and cover no more
        return None


def _duplicates(pieces: list[str]) -> tuple[float, float]:
    """The part of the pieces that are not empty, and of their characters, that stood before."""
    pieces = list(filter(None, pieces))
    if len(set(pieces)) == len(pieces):
        return 0.0, 0.0
    seen = Counter(pieces)
    repeated = sum((count - 1) * len(piece) for piece, count in seen.items())
    return 1 - len(seen) / len(pieces), repeated / max(1, sum(map(len, pieces)))


class _Ngrams:
    """The n-grams of a text. What is below a bound by a rough estimate is not counted exactly."""

    def __init__(self, words: Sequence[str]) -> None:
        number_of = dict(zip(words, range(len(words)), strict=True))  # equal words have one number
        self._numbers = np.fromiter(map(number_of.__getitem__, words), np.uint64, len(words))
        self.lengths = np.fromiter(map(len, words), np.int64, len(words))
        self._longest = int(self.lengths.max())
        self._hashes: dict[int, npt.NDArray[np.uint64]] = {}

    def top_characters(self, n: int, bound: float) -> int:
        """Characters that the most frequent n-gram has everywhere; 0 if surely not above a bound."""
        _, most = self._repeats(n)
        if most <= 1 or most * n * self._longest <= bound:
            return 0
        counts = np.bincount(self._first(n))
        sums = np.convolve(self.lengths, np.ones(n, np.int64), "valid")
        return most * int(sums[: len(counts)][counts == most].max())

    def duplicate_characters(self, n: int, bound: float) -> int:
        """Characters of the words in duplicate n-grams; 0 if they are surely not above a bound."""
        repeats, _ = self._repeats(n)
        if not repeats or repeats * n * self._longest <= bound:
            return 0
        first = self._first(n)
        places = np.flatnonzero(first < np.arange(len(first)))
        change = np.zeros(len(self.lengths) + 1, np.int64)
        change[places] += 1
        change[places + n] -= 1
        return int(self.lengths[np.cumsum(change[:-1]) > 0].sum())

    def _repeats(self, n: int) -> tuple[int, int]:
        """How many n-grams stood before, and how often the most frequent one stands."""
        hashes = np.sort(self._hashes_of(n))
        if not len(hashes):
            return 0, 0
        begins = np.flatnonzero(hashes[1:] != hashes[:-1]) + 1
        return len(hashes) - 1 - len(begins), int(np.diff(begins, prepend=0, append=len(hashes)).max())

    def _first(self, n: int) -> npt.NDArray[np.int64]:
        """For each position, the number of the first position at which its n-gram stands."""
        _, first, inverse = np.unique(self._hashes_of(n), return_index=True, return_inverse=True)
        return first[inverse]

    def _hashes_of(self, n: int) -> npt.NDArray[np.uint64]:
        """64 bits for at most some million n-grams of a text."""
        if n not in self._hashes:
            count = len(self._numbers) - n + 1
            self._hashes[n] = window_hashes(self._numbers, n) if count > 0 else self._numbers[:0]
        return self._hashes[n]
