"""Audit of near-duplicates: do pairs of a real corpus become pairs as often as theory says?"""

import dataclasses
import heapq
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from groundup.corpus.dedup.minhash import MinHash, jaccard
from groundup.corpus.document import Document

_LOOSE_ROWS = 2  # candidates share so many hashes somewhere: of pairs alike by 0.3 all but one in 300
_LARGEST_BUCKET = 200  # documents; more are boilerplate, of which so many are enough
_NUM_BINS = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The pairs of a range of true Jaccard similarity.

    Attributes:
        low: Begin of the range, which is 1 / 10 wide.
        pairs: Pairs of the sample in it.
        found: Those that share a band.
        expected: What theory expects of them, the sum of their probabilities.
    """

    low: float
    pairs: int
    found: int
    expected: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit has found.

    Attributes:
        documents: Documents of the sample.
        bins: By similarity, from 0 on.
        examples: Ids of two documents, their true similarity, and whether they became a pair: those nearest
            to the threshold.
    """

    documents: int
    bins: tuple[Bin, ...]
    examples: tuple[tuple[str, str, float, bool], ...]


def sample_documents(documents: Iterable[Document], count: int, *, seed: int = 0) -> list[Document]:
    """Returns the documents of the least hashes of their ids: the same for any order of the input."""
    heap: list[tuple[int, int, Document]] = []
    for number, document in enumerate(documents):
        key = -xxhash.xxh3_64_intdigest(document.id.encode("utf-8", "surrogatepass"), seed=seed)
        if len(heap) < count:
            heapq.heappush(heap, (key, number, document))
        elif key > heap[0][0]:
            heapq.heapreplace(heap, (key, number, document))
    return [document for _, _, document in sorted(heap, key=lambda entry: entry[1])]


def audit(documents: Sequence[Document], settings: MinHash, *, num_examples: int = 5) -> Audit:
    """Compares all pairs of documents that are somewhat alike with what their signatures say.

    Candidates are found with bands of two rows, so that hardly a pair above a similarity of 0.3 is missed;
    of each candidate the true Jaccard similarity is computed from its shingles.

    Args:
        documents: A sample.
        settings: Of the near-duplicates.
        num_examples: Pairs to show.
    """
    signed = [(document, settings.signature(document.text)) for document in documents]
    known = [document for document, signature in signed if signature is not None]
    if not known:
        return Audit(documents=len(documents), bins=(), examples=())
    signatures = np.stack([signature for _, signature in signed if signature is not None])
    hashes = settings.band_hashes(signatures)
    shingles = [np.unique(settings.shingles(document.text)) for document in known]
    sums = np.zeros((_NUM_BINS, 3))
    pairs = []
    for one, other in sorted(_candidates(signatures)):
        similarity = jaccard(shingles[one], shingles[other])
        is_found = bool((hashes[one] == hashes[other]).any())
        number = min(int(similarity * _NUM_BINS), _NUM_BINS - 1)
        sums[number] += 1, is_found, settings.probability(similarity)
        distance = abs(similarity - settings.threshold)
        pairs.append((distance, known[one].id, known[other].id, similarity, is_found))
    bins = [
        Bin(low=number / _NUM_BINS, pairs=int(count), found=int(found), expected=float(expected))
        for number, (count, found, expected) in enumerate(sums)
    ]
    examples = tuple(pair[1:] for pair in heapq.nsmallest(num_examples, pairs))
    return Audit(documents=len(documents), bins=tuple(bins), examples=examples)


def _candidates(signatures: npt.NDArray[np.uint32]) -> set[tuple[int, int]]:
    """Pairs that share two neighbouring numbers of their signatures."""
    found: set[tuple[int, int]] = set()
    for column in range(0, signatures.shape[1] - _LOOSE_ROWS + 1, _LOOSE_ROWS):
        keys = signatures[:, column].astype(np.uint64) << np.uint64(32) | signatures[:, column + 1]
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.concatenate(([True], keys[order][1:] != keys[order][:-1])))
        for bucket in np.split(order, starts[1:]):
            members = np.sort(bucket[:_LARGEST_BUCKET]).tolist()
            found.update((one, other) for at, one in enumerate(members) for other in members[at + 1 :])
    return found
