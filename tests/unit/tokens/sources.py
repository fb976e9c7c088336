"""Token sources in memory, for tests."""

from collections.abc import Sequence

import numpy as np


class ArraySource:
    """A ``TokenSource`` of an array, cut into documents of these lengths."""

    name = "array"
    fingerprint = "array"

    def __init__(self, tokens, lengths: Sequence[int]) -> None:
        assert len(tokens) == sum(lengths)
        self.tokens = tokens
        self._lengths = np.array(lengths, dtype=np.int32)
        self._ends = np.cumsum(lengths)

    @property
    def num_documents(self) -> int:
        return len(self._lengths)

    def token_begin(self, document: int) -> int:
        return int(self._ends[document - 1]) if document else 0

    def document_lengths(self, begin: int, end: int):
        return self._lengths[begin:end]

    def documents_at(self, positions):
        return np.searchsorted(self._ends, positions, side="right")
