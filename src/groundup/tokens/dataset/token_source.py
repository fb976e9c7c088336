"""What a tokenized dataset is to those who train on it, whatever files it lies in."""

import dataclasses
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Tokens(Protocol):
    """Tokens that are sliced like a one-dimensional array; a slice within one file is a view of it."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice) -> npt.NDArray[Any]: ...


@dataclasses.dataclass(frozen=True)
class TokenRange:
    """The tokens [begin, end) of others, which are read only where it is sliced."""

    tokens: Tokens
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def __getitem__(self, where: slice) -> npt.NDArray[Any]:
        first, last, step = where.indices(len(self))
        return self.tokens[self.begin + first : self.begin + max(first, last) : step]


class TokenSource(Protocol):
    """Documents one behind the other, memory-mapped.

    A document is what a split divides and an order may not tear apart: a sequence of ``.idx``, or a run
    of a shard that begins with the end-of-document id.
    """

    @property
    def name(self) -> str:
        """For messages: the prefix or the folder."""
        ...

    @property
    def tokens(self) -> Tokens:
        """All tokens, in file order."""
        ...

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the tokens or documents do; cheap."""
        ...

    def token_begin(self, document: int) -> int:
        """Number of tokens before a document; ``document`` may be num_documents."""
        ...

    def document_lengths(self, begin: int, end: int) -> npt.NDArray[np.int32]:
        """Tokens of each of the documents [begin, end)."""
        ...

    def documents_at(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The document that each of these tokens belongs to, of the same shape."""
        ...
