"""N-grams that documents share with the items of evaluation tasks, and documents without them.

The rule is that of Megatron-LM's ``tools/openwebtext/filter_ngrams.py`` (after Brown et al. 2020,
arXiv:2005.14165, appendix C): words are the runs of letters, digits and underscores in lower case. An item
of at least ``max_ngram`` words gives all its n-grams of that size, a shorter one a single n-gram of all its
words, and one of fewer than ``min_ngram`` words gives none.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive
from groundup.corpus.window_hashes import window_hashes

_WORD = re.compile(r"\w+")
_SENTENCE_ENDS = ".!?"


@config
class Overlap:
    """Which n-grams count, and what is cut around them; the defaults are Megatron-LM's.

    Attributes:
        max_ngram: Words of an n-gram.
        min_ngram: Items of fewer words are not looked for.
        common_count: An n-gram that stands so often in the corpus is common language, and is left alone.
        cut_characters: So many characters before and behind a match go with it, up to the end of a sentence.
        min_characters: What is left between cuts is kept where it is longer.
        max_pieces: A document that falls into more pieces is dropped.
    """

    max_ngram: Positive = 13
    min_ngram: Positive = 8
    common_count: Positive = 10
    cut_characters: NotNegative = 200
    min_characters: NotNegative = 200
    max_pieces: Positive = 10

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram {self.min_ngram} is above max_ngram {self.max_ngram}")


class NgramIndex:
    """The n-grams of the items of tasks.

    Args:
        items: Of each item its texts, such as a context with each of its endings.
        settings: Which n-grams count.
    """

    def __init__(self, items: Iterable[Sequence[str]], settings: Overlap) -> None:
        self.settings = settings
        self.num_items = 0
        self._items: dict[str, list[int]] = {}
        for number, texts in enumerate(items):
            self.num_items = number + 1
            for ngram in {ngram for text in texts for ngram in _ngrams_of_item(text, settings)}:
                self._items.setdefault(ngram, []).append(number)
        self._only(self._items)

    def __len__(self) -> int:
        return len(self._ngrams)

    def without(self, common: Collection[str]) -> "NgramIndex":
        """Returns an index without the n-grams that are common language."""
        index = NgramIndex((), self.settings)
        index.num_items, index._items = self.num_items, self._items
        index._only(ngram for ngram in self._items if ngram not in common)
        return index

    def items_with(self, ngrams: Iterable[str]) -> set[int]:
        """Returns the numbers of the items that hold one of the n-grams."""
        return {number for ngram in ngrams for number in self._items[ngram]}

    def count(self, text: str) -> Counter[str]:
        """Counts the n-grams of the index in a text; what overlaps a match before it does not count."""
        counts: Counter[str] = Counter()
        begin = 0
        while (match := self._first_match(text[begin:])) is not None:
            start, ngram = match
            counts[ngram] += 1
            begin += start + len(ngram) + 1
        return counts

    def clean(self, text: str) -> list[str]:
        """Returns what is left of a text without matches and what is around them; the text where none is."""
        kept, settings = [], self.settings
        rest: str = text
        while (match := self._first_match(rest)) is not None:
            start, ngram = match
            before = _up_to_sentence_end(rest, start - settings.cut_characters)
            if len(before) > settings.min_characters:
                kept.append(before)
            rest = _from_next_sentence(rest, start + len(ngram) + settings.cut_characters)
            if len(rest) <= settings.min_characters:
                return kept
        return [*kept, rest]

    def _only(self, ngrams: Iterable[str]) -> None:
        self._ngrams = set(ngrams)
        by_size: dict[int, list[str]] = {}
        for ngram in self._ngrams:
            by_size.setdefault(ngram.count(" ") + 1, []).extend(ngram.split(" "))
        self._hashes = {
            size: np.sort(window_hashes(_word_hashes(words), size)[::size]) for size, words in by_size.items()
        }

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """The first n-gram that a text shares, the longest of several at one place, and where it starts."""
        lower = text.lower()
        words = _WORD.findall(lower)
        word_hashes = _word_hashes(words)
        places = [
            (place, -size)
            for size, hashes in self._hashes.items()
            if size <= len(words)
            for place in np.flatnonzero(_are_in(window_hashes(word_hashes, size), hashes)).tolist()
        ]
        for place, negative_size in sorted(places):
            ngram = " ".join(words[place : place - negative_size])
            if ngram in self._ngrams:  # and does not only have the hash of one
                return _start_of_word(lower, place), ngram
        return None


def _ngrams_of_item(text: str, settings: Overlap) -> Iterator[str]:
    words = _WORD.findall(text.lower())
    if len(words) >= settings.min_ngram:
        size = min(settings.max_ngram, len(words))
        for place in range(len(words) - size + 1):
            yield " ".join(words[place : place + size])


def _up_to_sentence_end(text: str, position: int) -> str:
    """The text up to the last end of a sentence at or before a position; empty where there is none."""
    end = max(text.rfind(mark, 0, position + 1) for mark in _SENTENCE_ENDS) if position > 0 else 0
    return text[: end + 1] if end > 0 else ""


def _from_next_sentence(text: str, position: int) -> str:
    """The text behind the first end of a sentence at or behind a position; empty where there is none."""
    ends = [end for mark in _SENTENCE_ENDS if (end := text.find(mark, position)) >= 0]
    return text[min(ends) + 1 :] if ends else ""


def _start_of_word(lower: str, number: int) -> int:
    for place, found in enumerate(_WORD.finditer(lower)):
        if place == number:
            return found.start()
    raise AssertionError


def _word_hashes(words: Sequence[str]) -> npt.NDArray[np.uint64]:
    known = {word: xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass")) for word in set(words)}
    return np.array([known[word] for word in words], np.uint64)


def _are_in(values: npt.NDArray[np.uint64], ordered: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    places = np.searchsorted(ordered, values)
    found: npt.NDArray[np.bool_] = ordered[np.minimum(places, len(ordered) - 1)] == values
    return found
