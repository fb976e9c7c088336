"""What a tokenized data set is to those who train on it, whatever files it lies in."""

import bisect
import dataclasses
import functools
import itertools
import mmap
from collections.abc import Callable, Sequence
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

    A document is what a split divides and an order may not tear apart: a sequence of ``.idx``, or a range
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


_OPEN_FILES = 64


class ConcatTokens:
    """Tokens of shards that lie in different files; a slice within one shard is a view of it.

    Args:
        lengths: Tokens of each shard.
        open_shard: Maps the tokens of a shard, by its number.
        dtype: Of the tokens.
    """

    def __init__(
        self, lengths: Sequence[int], open_shard: Callable[[int], npt.NDArray[Any]], dtype: np.dtype[Any]
    ) -> None:
        self.begins = [0, *itertools.accumulate(lengths)]
        self.dtype = dtype
        self._shard = open_shard

    def __len__(self) -> int:
        return self.begins[-1]

    def __getitem__(self, where: slice) -> npt.NDArray[Any]:
        begin, end, step = where.indices(len(self))
        if step != 1:
            raise ValueError(f"tokens are sliced one by one, not by steps of {step}")
        if begin >= end:
            return np.empty(0, self.dtype)
        ranges = []
        shard = bisect.bisect_right(self.begins, begin) - 1
        while begin < end:
            first = self.begins[shard]
            until = min(end, self.begins[shard + 1])
            if until > begin:
                ranges.append(self._shard(shard)[begin - first : until - first])
                begin = until
            shard += 1
        return ranges[0] if len(ranges) == 1 else np.concatenate(ranges)

    def expect_random_reads(self) -> None:
        """See the function of this name."""
        open_shard = self._shard

        def advised(shard: int) -> npt.NDArray[Any]:
            tokens = open_shard(shard)
            expect_random_reads(tokens)
            return tokens

        self._shard = keep_some_open(advised)

    def shards_at(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The shard that each of these tokens lies in, of the same shape."""
        return np.searchsorted(self.begins, np.asarray(positions), side="right") - 1


def keep_some_open(open_shard: Callable[[int], Any]) -> Callable[[int], Any]:
    """Remembers the last 64 shards that were opened: thousands of maps would exceed the limit of files."""
    return functools.lru_cache(maxsize=_OPEN_FILES)(open_shard)


def expect_random_reads(tokens: Any) -> None:
    """Tells the system that short slices will be read in no order, so that it does not read ahead.

    Reading ahead makes a cold window of 1,025 tokens several times as slow (see ``docs/LOG.md``); for one
    who reads from end to end it is the other way round. No effect on what is in memory anyway.

    Args:
        tokens: ``ConcatTokens``, or a memory-mapped array or a view of one.
    """
    if isinstance(tokens, ConcatTokens):
        tokens.expect_random_reads()
        return
    owner = tokens
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        owner.madvise(mmap.MADV_RANDOM)
