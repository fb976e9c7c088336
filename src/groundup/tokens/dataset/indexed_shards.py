"""Many ``.bin``/``.idx`` files as one dataset, as a job array writes them: one part a task."""

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
from groundup.tokens.dataset.token_source import ChainedTokens, keep_some_open


class IndexedParts:
    """Parts in the order given, as one ``TokenSource``; its documents are theirs, one behind the other.

    Args:
        prefixes: Of the parts, at least one; all of one dtype, and of one tokenizer as far as their
            manifests tell.
        name: For messages.

    Raises:
        DataError: A part is missing or malformed, or does not go with the first.
    """

    def __init__(self, prefixes: Sequence[Path], *, name: str) -> None:
        self.prefixes = list(prefixes)
        self.name = name
        tokens, documents = [], []
        dtypes: dict[np.dtype[Any], Path] = {}
        for prefix in self.prefixes:
            part = IndexedDataset(prefix)
            tokens.append(part.num_tokens)
            documents.append(part.num_documents)
            dtypes.setdefault(part.dtype, prefix)
        require_same_kind(self.prefixes, dtypes)
        self.dtype = next(iter(dtypes))
        self._document_begins = [0, *itertools.accumulate(documents)]
        self._part = keep_some_open(lambda number: IndexedDataset(self.prefixes[number]))
        self.tokens = ChainedTokens(tokens, lambda number: self._part(number).tokens, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(IndexedParts, name=self.name), (self.prefixes,)

    @property
    def num_documents(self) -> int:
        """Number of documents (sequences) of all parts."""
        return self._document_begins[-1]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the parts' fingerprints, in order."""
        return fingerprint([IndexedDataset(prefix).fingerprint for prefix in self.prefixes])

    def token_begin(self, document: int) -> int:
        """Number of tokens before a document; ``document`` may be num_documents."""
        if document == self.num_documents:
            return len(self.tokens)
        number = bisect.bisect_right(self._document_begins, document) - 1
        part: IndexedDataset = self._part(number)
        return self.tokens.begins[number] + part.token_begin(document - self._document_begins[number])

    def local_shard_of(self, document: int) -> tuple[Path, int]:
        """The prefix of the part that holds a document, and the document's number there."""
        number = bisect.bisect_right(self._document_begins, document) - 1
        return self.prefixes[number], document - self._document_begins[number]

    def document_lengths(self, begin: int, end: int) -> npt.NDArray[np.int32]:
        """Tokens of each of the documents [begin, end)."""
        pieces = [np.empty(0, np.int32)]
        for number, (first, last) in enumerate(itertools.pairwise(self._document_begins)):
            if begin < last and first < end:
                pieces.append(
                    self._part(number).document_lengths(max(begin, first) - first, min(end, last) - first)
                )
        return np.concatenate(pieces)

    def documents_at(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The document of each of these tokens, of the same shape; 0 <= position < number of tokens."""
        wanted = np.asarray(positions, dtype=np.int64)
        numbers = self.tokens.parts_at(wanted)
        found = np.empty(wanted.shape, dtype=np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            inside = self._part(number).documents_at(wanted[here] - self.tokens.begins[number])
            found[here] = inside + self._document_begins[number]
        return found


def require_same_kind(prefixes: Sequence[Path], dtypes: dict[np.dtype[Any], Path]) -> None:
    """Refuses parts that were built with different tokenizers.

    Args:
        prefixes: Of the parts.
        dtypes: The dtypes found in them, each with a part that has it.

    Raises:
        DataError: Naming two parts that differ.
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
