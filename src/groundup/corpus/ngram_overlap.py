"""N-grams that documents share with the items of evaluation tasks, and documents without them.

The rule is that of Megatron-LM's ``tools/openwebtext/filter_ngrams.py`` (after Brown et al. 2020,
arXiv:2005.14165, appendix C): words are the runs of letters, digits and underscores in lower case. An item
of at least ``max_ngram`` words gives all its n-grams of that size, a shorter one a single n-gram of all its
words, and one of fewer than ``min_ngram`` words gives none.
"""

import bisect
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive
from groundup.corpus.window_hashes import window_hashes

_WORD = re.compile(r"\w+")
_SENTENCE_ENDS = ".!?"
_OTHER = np.uint64(0xC2B2AE3D27D4EB4F)  # makes a second hash of the same words

_Hashes = npt.NDArray[np.uint64]


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
    """The n-grams of the items of tasks, numbered from 0, as hashes of 128 bits: about 40 bytes each.

    Args:
        items: Of each item its texts, such as a context with each of its endings.
        settings: Which n-grams count.
    """

    def __init__(self, items: Iterable[Sequence[str]], settings: Overlap) -> None:
        self.settings = settings
        self.num_items = 0
        found: dict[int, list[tuple[int, _Hashes]]] = {}
        known: dict[str, int] = {}
        for number, texts in enumerate(items):
            self.num_items = number + 1
            for text in texts:
                hashes = _word_hashes(_WORD.findall(text), known)
                if len(hashes) >= settings.min_ngram:
                    found.setdefault(min(settings.max_ngram, len(hashes)), []).append((number, hashes))
        self._tables: dict[int, tuple[int, _Hashes, _Hashes]] = {}
        self._items = np.zeros(0, np.int32)  # of each n-gram, one behind the other
        self._ends = np.zeros(1, np.int64)
        for size, entries in sorted(found.items()):
            self._add(size, entries)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def items_with(self, ngrams: Iterable[int]) -> set[int]:
        """Returns the numbers of the items that hold one of the n-grams."""
        found: set[int] = set()
        for ngram in ngrams:
            begin, end = self._ends[ngram : ngram + 2].tolist()
            found.update(self._items[begin:end].tolist())
        return found

    def scan(self, text: str) -> "Scan":
        """Looks for the n-grams in a text."""
        return Scan(self, text)

    def find(self, word_hashes: _Hashes) -> list[tuple[int, int, int]]:
        """Returns place, size and number of each n-gram among words, by place, the longest first."""
        found = []
        for size, (first, hashes, others) in self._tables.items():
            if size > len(word_hashes):
                continue
            windows = window_hashes(word_hashes, size)
            rows = np.minimum(np.searchsorted(hashes, windows), len(hashes) - 1)
            places = np.flatnonzero(hashes[rows] == windows)
            if len(places):
                same = others[rows[places]] == window_hashes(word_hashes ^ _OTHER, size)[places]
                places = places[same]
                found += [
                    (place, -size, first + row)
                    for place, row in zip(places.tolist(), rows[places].tolist(), strict=True)
                ]
        return [(place, -size, number) for place, size, number in sorted(found)]

    def _add(self, size: int, entries: Sequence[tuple[int, _Hashes]]) -> None:
        hashes = np.concatenate([window_hashes(words, size) for _, words in entries])
        others = np.concatenate([window_hashes(words ^ _OTHER, size) for _, words in entries])
        numbers = np.array([number for number, _ in entries], np.int32)
        items = np.repeat(numbers, [len(words) - size + 1 for _, words in entries])
        order = np.lexsort((items, hashes))
        hashes, others, items = hashes[order], others[order], items[order]
        is_new = np.concatenate(([True], hashes[1:] != hashes[:-1]))
        is_item = is_new | np.concatenate(([True], items[1:] != items[:-1]))
        ends = np.append(np.flatnonzero(is_new[is_item])[1:], int(is_item.sum()))
        self._tables[size] = (len(self), hashes[is_new], others[is_new])
        self._ends = np.concatenate((self._ends, len(self._items) + ends))
        self._items = np.concatenate((self._items, items[is_item]))


class Scan:
    """A text, and all places at which it shares n-grams with the items."""

    def __init__(self, index: NgramIndex, text: str) -> None:
        self.text = text
        self._index = index
        words = _WORD.findall(text)
        self._found = index.find(_word_hashes(words, {}))
        self._spans = [match.span() for match in _WORD.finditer(text)] if self._found else []

    @property
    def ngrams(self) -> set[int]:
        """The n-grams that stand in it anywhere."""
        return {ngram for _, _, ngram in self._found}

    def count(self) -> Counter[int]:
        """Counts the n-grams; what overlaps a match before it does not count."""
        counts: Counter[int] = Counter()
        begin = 0
        while (match := self._next(begin, frozenset())) is not None:
            start, length, ngram = match
            counts[ngram] += 1
            begin = start + length + 1
        return counts

    def clean(self, common: Collection[int] = frozenset()) -> list[str]:
        """Returns what is left of the text without matches and what is around them; the text where none is.

        Args:
            common: N-grams that are common language, and stay.
        """
        kept, begin, settings = [], 0, self._index.settings
        while (match := self._next(begin, common)) is not None:
            start, length, _ = match
            before = _up_to_sentence_end(self.text[begin:start], start - begin - settings.cut_characters)
            if len(before) > settings.min_characters:
                kept.append(before)
            begin = _next_sentence(self.text, start + length + settings.cut_characters)
            if len(self.text) - begin <= settings.min_characters:
                return kept
        return [*kept, self.text[begin:]]

    def _next(self, begin: int, common: Collection[int]) -> tuple[int, int, int] | None:
        """The first match from a character on: start, length with one blank between words, number.

        A word that the beginning cuts counts by what is left of it, as in a text that begins there.
        """
        if not self._found:
            return None
        word = bisect.bisect_left(self._spans, (begin, 0))
        if word and begin < self._spans[word - 1][1]:
            spans = [(begin, self._spans[word - 1][1])]
            spans += self._spans[word : word + self._index.settings.max_ngram - 1]
            cut = _word_hashes([self.text[slice(*span)] for span in spans], {})
            for place, size, ngram in self._index.find(cut):
                if place == 0 and ngram not in common:
                    return begin, _joined_length(spans[:size]), ngram
        at = bisect.bisect_left(self._found, word, key=lambda found: found[0])
        for number in range(at, len(self._found)):
            place, size, ngram = self._found[number]
            if ngram not in common:
                spans = self._spans[place : place + size]
                return spans[0][0], _joined_length(spans), ngram
        return None


def _joined_length(spans: Sequence[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans) + len(spans) - 1


def _up_to_sentence_end(text: str, position: int) -> str:
    """The text up to the last end of a sentence at or before a position; empty where there is none."""
    end = max(text.rfind(mark, 0, position + 1) for mark in _SENTENCE_ENDS) if position > 0 else 0
    return text[: end + 1] if end > 0 else ""


def _next_sentence(text: str, position: int) -> int:
    """Where the text behind the first end of a sentence at or behind a position begins."""
    ends = [end for mark in _SENTENCE_ENDS if (end := text.find(mark, position)) >= 0]
    return min(ends) + 1 if ends else len(text)


def _word_hashes(words: Sequence[str], known: dict[str, int]) -> _Hashes:
    """Hashes words in lower case, and remembers them in ``known``."""
    for word in {*words}.difference(known):
        known[word] = xxhash.xxh3_64_intdigest(word.lower().encode("utf-8", "surrogatepass"))
    return np.array([known[word] for word in words], np.uint64)
