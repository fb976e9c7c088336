"""Hashes of the shingles of many texts at once: no word is ever an object, and arrays stay in the cache."""

import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

_U64 = np.uint64
_BASE = 0x9E3779B97F4A7C15  # odd: it has an inverse modulo 2^64
_BASE_INVERSE = pow(_BASE, -1, 1 << 64)
WORD_BASE = 0xC2B2AE3D27D4EB4F
_BLANK, _LETTER, _IDEOGRAPH = 0, 1, 2
_PLANE = 1 << 16  # characters that have an entry in a table
_CACHED_POWERS = 1 << 18

_BLANK_RANGES = (
    *((0x80, 0xBF), (0x2000, 0x206F), (0x3000, 0x303F)),
    *((0xFE30, 0xFE4F), (0xFF00, 0xFF0F), (0xFF1A, 0xFF20)),
)
_IDEOGRAPH_RANGES = ((0x3041, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7AF))
_HIGH_IDEOGRAPHS = (0x20000, 0x3FFFF)

Hashes = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


def hash_shingles(
    texts: Sequence[str], shingle: Literal["words", "characters"], size: int
) -> tuple[Hashes, Counts]:
    """Hashes the shingles of texts, in lower case and without punctuation.

    Args:
        texts: Of some ten thousand characters together, or one longer one.
        shingle: What a shingle consists of; ideographs, kana and hangul syllables are words of their own.
        size: So many words or characters; a shorter text is one shingle.

    Returns:
        The hashes of one text after the other, in order and with repetitions; and how many each has.
    """
    lowered = [text.lower() for text in texts]
    bounds = np.cumsum(np.fromiter(map(len, lowered), np.int64, len(lowered)) + 1)  # behind its separator
    codes = np.frombuffer("\n".join([*lowered, ""]).encode("utf-32-le", "surrogatepass"), np.uint32)
    places = np.minimum(codes, _PLANE - 1).astype(np.intp)
    kinds, mixed = _kinds_of_plane()[places], _mixed_plane()[places]
    high = np.flatnonzero(codes >= _PLANE)
    is_ideograph = (codes[high] >= _HIGH_IDEOGRAPHS[0]) & (codes[high] <= _HIGH_IDEOGRAPHS[1])
    kinds[high], mixed[high] = np.where(is_ideograph, _IDEOGRAPH, _LETTER), mix(codes[high])
    if shingle == "words":
        values, counts = _hash_words(mixed, kinds, bounds)
    else:
        values, counts = _spaced(mixed, kinds, bounds)
    return _hash_windows(values, counts, size)


def mix(values: npt.NDArray[np.unsignedinteger]) -> Hashes:
    """Spreads values over all 64 bits, as SplitMix64's last step does (Steele, Lea, Flood 2014)."""
    mixed = values.astype(np.uint64) + _U64(_BASE)
    mixed = (mixed ^ (mixed >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> _U64(27))) * _U64(0x94D049BB133111EB)
    return mixed ^ (mixed >> _U64(31))


def _hash_words(mixed: Hashes, kinds: npt.NDArray[np.uint8], bounds: Counts) -> tuple[Hashes, Counts]:
    """Hashes the words in order: differences of a running polynomial, taken back to the word's begin."""
    is_letter, is_ideograph = kinds == _LETTER, kinds == _IDEOGRAPH
    # The last character is a separator: no word begins before the first or ends behind the last one.
    starts = np.flatnonzero(is_ideograph | (is_letter & ~np.concatenate(([False], is_letter[:-1]))))
    ends = np.flatnonzero(is_ideograph | (is_letter & ~np.concatenate((is_letter[1:], [False])))) + 1
    counts = np.diff(np.searchsorted(starts, bounds), prepend=0)
    running = np.empty(len(mixed) + 1, np.uint64)
    running[0] = 0
    np.cumsum(mixed * _powers(_BASE, len(mixed)), out=running[1:])
    return mix((running[ends] - running[starts]) * _powers(_BASE_INVERSE, len(mixed))[starts]), counts


def _spaced(mixed: Hashes, kinds: npt.NDArray[np.uint8], bounds: Counts) -> tuple[Hashes, Counts]:
    """Hashes the characters; a run of white space and punctuation is one blank, and none at the ends."""
    is_word = kinds != _BLANK
    places = np.flatnonzero(is_word | np.concatenate(([False], is_word[:-1])))
    ends = np.searchsorted(places, bounds)
    counts = np.diff(ends, prepend=0)
    values = np.where(is_word, mixed, mix(np.array([ord(" ")], np.uint32)))[places]
    last = ends[counts > 0] - 1  # the separator at least is blank
    return np.delete(values, last), counts - (counts > 0)


def _hash_windows(values: Hashes, counts: Counts, size: int) -> tuple[Hashes, Counts]:
    """Hashes the windows of so many values within each text; all values of a text that has fewer."""
    ends = np.cumsum(counts)
    starts = ends - counts
    hashes = np.full(len(values), size, np.uint64)
    whole = hashes[: max(0, len(values) - size + 1)]
    for offset in range(size if len(whole) else 0):
        whole *= _U64(WORD_BASE)
        whole += values[offset : offset + len(whole)]
    taken = np.ones(len(values), bool)
    present = counts > 0
    for offset in range(1, size):
        taken[np.maximum(ends - offset, starts)[present]] = False
    for count in range(1, size):
        short = starts[counts == count]
        taken[short] = True
        hashes[short] = count
        for offset in range(count):
            hashes[short] = hashes[short] * _U64(WORD_BASE) + values[short + offset]
    return mix(hashes[taken]), np.where(counts >= size, counts - size + 1, present)


@functools.cache
def _kinds_of_plane() -> npt.NDArray[np.uint8]:
    """Tells letters and ideographs from what stands between words, for the first 65,536 characters."""
    kinds = np.full(_PLANE, _LETTER, np.uint8)
    kinds[:0x80] = [_LETTER if chr(code).isalnum() else _BLANK for code in range(0x80)]
    for ranges, kind in ((_BLANK_RANGES, _BLANK), (_IDEOGRAPH_RANGES, _IDEOGRAPH)):
        for low, high in ranges:
            kinds[low : high + 1] = kind
    return kinds


@functools.cache
def _mixed_plane() -> Hashes:
    return mix(np.arange(_PLANE, dtype=np.uint32))


def _powers(base: int, count: int) -> Hashes:
    return _cached_powers(base)[:count] if count <= _CACHED_POWERS else _computed_powers(base, count)


@functools.cache
def _cached_powers(base: int) -> Hashes:
    return _computed_powers(base, _CACHED_POWERS)


def _computed_powers(base: int, count: int) -> Hashes:
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)
