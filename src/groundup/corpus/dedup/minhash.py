"""MinHash signatures: texts that share much of their wording share much of their signatures."""

import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive
from groundup.core.errors import ConfigError

_U64 = np.uint64
_BASE = 0x9E3779B97F4A7C15  # odd: it has an inverse modulo 2^64
_BASE_INVERSE = pow(_BASE, -1, 1 << 64)
_WORD_BASE = 0xC2B2AE3D27D4EB4F
_BLOCK = 512  # shingles that are hashed at once: they and their hashes stay in the processor's cache
_BLANK, _LETTER, _IDEOGRAPH = 0, 1, 2
_LARGEST_ERROR = 0.15  # of a curve that still tells duplicates from others
_STEPS = 1000  # of the integrals over the S-curve

Signature = npt.NDArray[np.uint32]


@config
class MinHash:
    """How near-duplicates are found (Broder 1997; banding: Leskovec, Rajaraman, Ullman, section 3.4).

    Texts are compared by the sets of their shingles, in lower case and without punctuation; the Jaccard
    similarity of two sets is the size of their intersection by that of their union. Two texts become a pair
    with the probability ``1 - (1 - similarity ** rows) ** bands``.

    Attributes:
        threshold: The similarity from which on two texts should count as duplicates.
        shingle: What a shingle consists of; ideographs, kana and hangul syllables are words of their own.
        shingle_size: So many words or characters; a shorter text is one shingle.
        num_hashes: The length of a signature at most, where bands and rows are derived from the threshold.
        bands: The number of bands; 0 derives bands and rows.
        rows: Hashes of each band.
        seed: Of the hash functions.
    """

    threshold: float = 0.7
    shingle: Literal["words", "characters"] = "words"
    shingle_size: Positive = 5
    num_hashes: Positive = 128
    bands: NotNegative = 0
    rows: NotNegative = 0
    seed: NotNegative = 1

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold {self.threshold} is not between 0 and 1")
        if (self.bands == 0) != (self.rows == 0):
            raise ValueError("bands and rows are given together, or derived together")

    @property
    def banding(self) -> tuple[int, int]:
        """The number of bands and of rows in each, as given or derived."""
        return (self.bands, self.rows) if self.bands else derive_banding(self.threshold, self.num_hashes)

    def probability(self, similarity: float) -> float:
        """Returns the probability that two texts of that Jaccard similarity become a pair."""
        bands, rows = self.banding
        return float(1 - (1 - similarity**rows) ** bands)

    def shingles(self, text: str) -> npt.NDArray[np.uint64]:
        """Returns the hashes of all shingles of a text, in order and with repetitions; none without words."""
        codes = np.frombuffer(text.lower().encode("utf-32-le", "surrogatepass"), np.uint32)
        kinds = _kinds(codes)
        if self.shingle == "words":
            return _windows(_word_hashes(codes, kinds), self.shingle_size)
        # A run of white space and punctuation is one blank, and none at the ends.
        is_word = kinds != _BLANK
        keep = is_word | np.concatenate(([False], is_word[:-1]))
        spaced = np.where(is_word, codes, 32)[keep]
        return _windows(
            _mixed(spaced[: len(spaced) - (len(spaced) > 0 and spaced[-1] == 32)]), self.shingle_size
        )

    def signature(self, text: str) -> Signature | None:
        """Returns the least hash of the text's shingles, by hash function; None for a text without words."""
        shingles = self.shingles(text)
        if not len(shingles):
            return None
        bands, rows = self.banding
        factors, shifts = _hash_functions(self.seed, bands * rows)
        least = np.full(bands * rows, np.iinfo(np.uint32).max, np.uint32)
        short = (shingles >> _U64(32)).astype(np.uint32)
        for begin in range(0, len(short), _BLOCK):
            hashes = (short[begin : begin + _BLOCK, None] ^ shifts) * factors
            np.minimum(least, hashes.min(axis=0), out=least)
        return least

    def bands_of(self, texts: Sequence[str]) -> npt.NDArray[np.uint64]:
        """Returns the band hashes of texts, ``[texts, bands]``; 0 for a text without words."""
        signatures = [self.signature(text) for text in texts]
        known = [number for number, signature in enumerate(signatures) if signature is not None]
        hashes = np.zeros((len(texts), self.banding[0]), np.uint64)
        if known:
            hashes[known] = self.band_hashes(np.stack([one for one in signatures if one is not None]))
        return hashes

    def band_hashes(self, signatures: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
        """Returns a hash of each band of each signature: ``[texts, bands * rows]`` -> ``[texts, bands]``."""
        bands, rows = self.banding
        cut = signatures.reshape(len(signatures), bands, rows).astype(np.uint64)
        hashes = np.broadcast_to(np.arange(1, bands + 1, dtype=np.uint64), cut.shape[:2])
        for row in range(rows):
            hashes = _mixed(hashes * _U64(_WORD_BASE) + cut[:, :, row])
        return np.maximum(hashes, _U64(1))  # 0 stands for a text without words


def jaccard(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> float:
    """Returns the Jaccard similarity of two texts, from their shingles; 0 where neither has any."""
    both = len(np.intersect1d(one, other))
    union = len(np.unique(one)) + len(np.unique(other)) - both
    return both / union if union else 0.0


@functools.cache
def derive_banding(threshold: float, num_hashes: int) -> tuple[int, int]:
    """Returns the bands and rows whose S-curve errs least around a threshold.

    The error is the sum of the area above the curve right of the threshold (missed pairs) and that below it
    left of the threshold (false pairs).

    Raises:
        ConfigError: No curve with so few hashes comes near the threshold.
    """
    similarities = (np.arange(_STEPS) + 0.5) / _STEPS
    wanted = similarities >= threshold
    errors = {}
    for rows in range(1, num_hashes + 1):
        for bands in range(1, num_hashes // rows + 1):
            found = 1 - (1 - similarities**rows) ** bands
            errors[bands, rows] = float(np.abs(wanted - found).mean())
    best = min(errors, key=lambda banding: (errors[banding], banding))
    if errors[best] > _LARGEST_ERROR:
        raise ConfigError(
            f"{num_hashes} hashes are too few for a threshold of {threshold}",
            where="num_hashes",
            fix="Use at least 64.",
        )
    return best


def _kinds(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Tells letters and ideographs from what stands between words."""
    kinds = np.full(len(codes), _LETTER, np.uint8)
    small = codes < 0x80
    kinds[small] = _ascii_kinds()[codes[small]]
    if not small.all():
        blank = (codes >= 0x80) & (codes < 0xC0)
        for low, high in (
            (0x2000, 0x206F),
            (0x3000, 0x303F),
            (0xFE30, 0xFE4F),
            (0xFF00, 0xFF0F),
            (0xFF1A, 0xFF20),
        ):
            blank |= (codes >= low) & (codes <= high)
        kinds[blank] = _BLANK
        for low, high in ((0x3041, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7AF), (0x20000, 0x3FFFF)):
            kinds[(codes >= low) & (codes <= high)] = _IDEOGRAPH
    return kinds


@functools.cache
def _ascii_kinds() -> npt.NDArray[np.uint8]:
    return np.array([_LETTER if chr(code).isalnum() else _BLANK for code in range(0x80)], np.uint8)


def _word_hashes(codes: npt.NDArray[np.uint32], kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Hashes of the words in order: differences of a running polynomial, taken back to the word's begin."""
    before = np.concatenate(([np.uint8(_BLANK)], kinds[:-1]))
    after = np.concatenate((kinds[1:], [np.uint8(_BLANK)]))
    starts = np.flatnonzero((kinds == _IDEOGRAPH) | ((kinds == _LETTER) & (before != _LETTER)))
    ends = np.flatnonzero((kinds == _IDEOGRAPH) | ((kinds == _LETTER) & (after != _LETTER))) + 1
    if not len(starts):
        return np.zeros(0, np.uint64)
    powers = _powers(_BASE, len(codes))
    running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mixed(codes) * powers, dtype=np.uint64)))
    return _mixed((running[ends] - running[starts]) * _powers(_BASE_INVERSE, len(codes))[starts])


def _windows(values: npt.NDArray[np.uint64], size: int) -> npt.NDArray[np.uint64]:
    """Hashes of all windows of so many values; of all values where they are fewer."""
    if not len(values):
        return values
    size = min(size, len(values))
    hashes = np.full(len(values) - size + 1, size, np.uint64)
    for offset in range(size):
        hashes = hashes * _U64(_WORD_BASE) + values[offset : offset + len(hashes)]
    return _mixed(hashes)


def _powers(base: int, count: int) -> npt.NDArray[np.uint64]:
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _mixed(values: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.uint64]:
    """Spreads values over all 64 bits, as SplitMix64's last step does (Steele, Lea, Flood 2014)."""
    mixed = values.astype(np.uint64) + _U64(_BASE)
    mixed = (mixed ^ (mixed >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> _U64(27))) * _U64(0x94D049BB133111EB)
    return mixed ^ (mixed >> _U64(31))


@functools.cache
def _hash_functions(seed: int, count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Odd factors and shifts of so many functions of 32-bit values."""
    drawn = _mixed(np.arange(2 * count, dtype=np.uint64) + _mixed(np.array([seed], np.uint64)))
    factors, shifts = (drawn >> _U64(32)).astype(np.uint32).reshape(2, count)
    return factors | np.uint32(1), shifts
