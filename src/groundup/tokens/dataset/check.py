"""Reading a whole tokenized dataset once, for what would otherwise fail in the middle of a training."""

from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.core.progress import Progress
from groundup.core.vocabulary import require_token_ids
from groundup.tokens.dataset.indexed import IndexedDataset, idx_path
from groundup.tokens.dataset.token_source import TokenSource

_CHUNK = 1 << 20


def check_index(data: IndexedDataset) -> None:
    """Whether the offsets follow from the lengths, and documents end after they begin.

    Raises:
        DataError: Names the first sequence or document that is wrong.
    """
    index = idx_path(data.prefix)
    begin = 0
    for first in range(0, data.num_sequences, _CHUNK):
        lengths = data.lengths[first : first + _CHUNK].astype(np.int64)
        sizes = lengths * data.dtype.itemsize
        offsets = begin + np.cumsum(sizes) - sizes
        wrong = np.flatnonzero((offsets != data.offsets[first : first + _CHUNK]) | (lengths < 0))
        if wrong.size:
            at = first + int(wrong[0])
            raise DataError(
                f"sequence {at} has offset {int(data.offsets[at])} and length {int(data.lengths[at])},"
                f" expected offset {int(offsets[wrong[0]])}",
                where=index,
                fix="Build it again.",
            )
        begin += int(sizes.sum())
    for first in range(0, data.num_recorded_documents, _CHUNK):
        falling = np.flatnonzero(np.diff(data.document_ends[first : first + _CHUNK + 1]) < 0)
        if falling.size:
            at = first + int(falling[0])
            raise DataError(f"document {at} ends before it begins", where=index, fix="Build it again.")


def check_ids(source: TokenSource, vocab_size: int) -> None:
    """Whether each token is an id of the vocabulary; shows progress.

    Args:
        source: Read once from front to back.
        vocab_size: Number of ids.

    Raises:
        DataError: Names the first token that is not, its document and its position in it.
    """
    tokens = source.tokens
    with Progress(f"check the ids of {source.name}", len(tokens), "tokens") as progress:
        for first in range(0, len(tokens), _CHUNK):
            chunk = tokens[first : first + _CHUNK]
            require_source_ids(source, first, chunk, vocab_size)
            progress.add(len(chunk))


def require_source_ids(source: TokenSource, first: int, tokens: npt.NDArray[Any], vocab_size: int) -> None:
    """Whether tokens of a source are ids of the vocabulary.

    Args:
        source: Where they are from.
        first: Place of the first of them among all tokens of the source.
        tokens: Read from there on.
        vocab_size: Number of ids.

    Raises:
        DataError: Names the first token that is not, its document and its position in it.
    """

    def place(index: int) -> str:
        document = int(source.documents_at(first + index))
        return f"position {first + index - source.token_begin(document)} of document {document}"

    require_token_ids(tokens, vocab_size, place=place, where=source.name)
