"""Many ``.bin``/``.idx`` files as one dataset, as a job array writes them: one shard a task."""

import bisect
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.core.manifest import fingerprint
from groundup.core.vocabulary import require_same_tokenizer
from groundup.tokens.dataset.dataset_manifest import recorded_tokenizer
from groundup.tokens.dataset.indexed import IndexedDataset
from groundup.tokens.dataset.token_source import ConcatTokens, keep_some_open


class IndexedShards:
    """Shards in the order given, as one ``TokenSource``; its documents are theirs, one behind the other.

    Args:
        prefixes: Of the shards, at least one; all of one dtype, and of one tokenizer as far as their
            manifests tell.
        name: For messages.

    Raises:
        DataError: A shard is missing or malformed, or does not go with the first.
    """

    def __init__(self, prefixes: Sequence[Path], *, name: str) -> None:
        self.prefixes = list(prefixes)
        self.name = name
        tokens, documents = [], []
        dtypes: dict[np.dtype[Any], Path] = {}
        for prefix in self.prefixes:
            shard = IndexedDataset(prefix)
            tokens.append(shard.num_tokens)
            documents.append(shard.num_documents)
            dtypes.setdefault(shard.dtype, prefix)
        require_same_kind(self.prefixes, dtypes)
        self.dtype = next(iter(dtypes))
        self._document_begins = [0, *itertools.accumulate(documents)]
        self._shard = keep_some_open(lambda number: IndexedDataset(self.prefixes[number]))
        self.tokens = ConcatTokens(tokens, lambda number: self._shard(number).tokens, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(IndexedShards, name=self.name), (self.prefixes,)

    @property
    def num_documents(self) -> int:
        """Number of documents (sequences) of all shards."""
        return self._document_begins[-1]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the shards' fingerprints, in order."""
        return fingerprint([IndexedDataset(prefix).fingerprint for prefix in self.prefixes])

    def token_begin(self, document: int) -> int:
        """Number of tokens before a document; ``document`` may be num_documents."""
        if document == self.num_documents:
            return len(self.tokens)
        number = bisect.bisect_right(self._document_begins, document) - 1
        shard: IndexedDataset = self._shard(number)
        return self.tokens.begins[number] + shard.token_begin(document - self._document_begins[number])

    def local_shard_of(self, document: int) -> tuple[Path, int]:
        """The prefix of the shard that holds a document, and the document's number there."""
        number = bisect.bisect_right(self._document_begins, document) - 1
        return self.prefixes[number], document - self._document_begins[number]

    def document_lengths(self, begin: int, end: int) -> npt.NDArray[np.int32]:
        """Tokens of each of the documents [begin, end)."""
        ranges = [np.empty(0, np.int32)]
        for number, (first, last) in enumerate(itertools.pairwise(self._document_begins)):
            if begin < last and first < end:
                ranges.append(
                    self._shard(number).document_lengths(max(begin, first) - first, min(end, last) - first)
                )
        return np.concatenate(ranges)

    def documents_at(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The document of each of these tokens, of the same shape; 0 <= position < number of tokens."""
        wanted = np.asarray(positions, dtype=np.int64)
        numbers = self.tokens.shards_at(wanted)
        found = np.empty(wanted.shape, dtype=np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            inside = self._shard(number).documents_at(wanted[here] - self.tokens.begins[number])
            found[here] = inside + self._document_begins[number]
        return found


def require_same_kind(prefixes: Sequence[Path], dtypes: dict[np.dtype[Any], Path]) -> None:
    """Refuses shards that were built with different tokenizers.

    Args:
        prefixes: Of the shards.
        dtypes: The dtypes found in them, each with a shard that has it.

    Raises:
        DataError: Naming two shards that differ.
    """
    if len(dtypes) > 1:
        (one, first), (other, second) = list(dtypes.items())[:2]
        raise DataError(
            f"holds {other}, {first} holds {one}: they were built with different tokenizers",
            where=second,
            fix="Keep them apart, or build them again with one tokenizer.",
        )
    known = [(prefix, mark) for prefix in prefixes if (mark := recorded_tokenizer(prefix))]
    for prefix, mark in known[1:]:
        first, expected = known[0]
        require_same_tokenizer(
            mark,
            expected,
            where=prefix,
            what="was built with",
            other=f"{first} with",
            fix="Keep them apart, or build them again with one tokenizer.",
        )
