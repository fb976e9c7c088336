"""MinHash signatures: texts that share much of their wording share much of their signatures."""

import functools
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive
from groundup.core.errors import ConfigError
from groundup.corpus.dedup.shingles import WORD_BASE, hash_shingles, mix

_U64 = np.uint64
_BATCH_CHARACTERS = 1 << 16  # whose arrays stay in the processor's cache
_BLOCK = 1 << 14  # shingles that are hashed at once: they and their hashes stay there too
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
        return hash_shingles([text], self.shingle, self.shingle_size)[0]

    def signature(self, text: str) -> Signature | None:
        """Returns the least hash of the text's shingles, by hash function; None for a text without words."""
        signatures, known = self.signatures([text])
        return signatures[0] if known[0] else None

    def signatures(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
        """Returns the signatures of texts, ``[texts, bands * rows]``, and which of them have words."""
        bands, rows = self.banding
        least = np.full((len(texts), bands * rows), np.iinfo(np.uint32).max, np.uint32)
        known = np.zeros(len(texts), bool)
        for begin, end in _batches(texts):
            shingles, counts = hash_shingles(texts[begin:end], self.shingle, self.shingle_size)
            known[begin:end] = counts > 0
            rows_of = begin + np.flatnonzero(counts)
            least[rows_of] = self._least((shingles >> _U64(32)).astype(np.uint32), counts[counts > 0])
        return least, known

    def _least(self, shingles: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64]) -> Signature:
        """The least hash of the shingles of each text, ``[texts, bands * rows]``; no count is 0."""
        bands, rows = self.banding
        factors, shifts = _hash_functions(self.seed, bands * rows)
        ends = np.cumsum(counts)
        least = np.full((bands * rows, len(counts)), np.iinfo(np.uint32).max, np.uint32)
        for begin in range(0, len(shingles), _BLOCK):
            block = shingles[begin : begin + _BLOCK]
            first = int(np.searchsorted(ends, begin, "right"))
            last = int(np.searchsorted(ends, begin + len(block), "left"))
            starts = np.maximum((ends - counts)[first : last + 1] - begin, 0)
            for number in range(
                bands * rows
            ):  # each text a piece of one array: a quarter of the time of rows
                hashes = (block ^ shifts[number]) * factors[number]
                found = least[number, first : last + 1]
                np.minimum(found, np.minimum.reduceat(hashes, starts), out=found)
        return least.T

    def bands_of(self, texts: Sequence[str]) -> npt.NDArray[np.uint64]:
        """Returns the band hashes of texts, ``[texts, bands]``; 0 for a text without words."""
        signatures, known = self.signatures(texts)
        return self.band_hashes(signatures) * known[:, None]

    def band_hashes(self, signatures: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
        """Returns a hash of each band of each signature: ``[texts, bands * rows]`` -> ``[texts, bands]``."""
        bands, rows = self.banding
        cut = signatures.reshape(len(signatures), bands, rows).astype(np.uint64)
        hashes = np.broadcast_to(np.arange(1, bands + 1, dtype=np.uint64), cut.shape[:2])
        for row in range(rows):
            hashes = mix(hashes * _U64(WORD_BASE) + cut[:, :, row])
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


def _batches(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The bounds of runs of texts that are hashed at once."""
    begin = size = 0
    for number, text in enumerate(texts):
        if size and size + len(text) > _BATCH_CHARACTERS:
            yield begin, number
            begin, size = number, 0
        size += len(text) + 1
    if begin < len(texts):
        yield begin, len(texts)


@functools.cache
def _hash_functions(seed: int, count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Odd factors and shifts of so many functions of 32-bit values."""
    drawn = mix(np.arange(2 * count, dtype=np.uint64) + mix(np.array([seed], np.uint64)))
    factors, shifts = (drawn >> _U64(32)).astype(np.uint32).reshape(2, count)
    return factors | np.uint32(1), shifts
