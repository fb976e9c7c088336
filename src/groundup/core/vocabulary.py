"""What data, tokenizers and models must agree on: the vocabulary, its padded size, the ids in it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError, GroundupError

VOCAB_MULTIPLE = 128
"""Vocabularies are padded to a multiple of this, as Megatron-LM does, for the matrix units' sake."""


def padded_vocab_size(vocab_size: int, multiple: int = VOCAB_MULTIPLE) -> int:
    """Rounds the vocabulary up to a multiple: the number of rows of an embedding."""
    return -(-vocab_size // multiple) * multiple


def require_token_ids(
    ids: npt.NDArray[Any],
    vocab_size: int,
    *,
    place: Callable[..., str],
    where: object = "",
    padding: int | None = None,
) -> None:
    """Checks that token ids are in a vocabulary.

    Args:
        ids: Any integers, of any shape.
        vocab_size: Number of ids, without padding.
        place: Says in words where the id at an index of ``ids`` is from.
        where: The file or data set.
        padding: A number in ``ids`` that is no token.

    Raises:
        DataError: Names the first id that is not.
    """
    if int(ids.max(initial=0)) < vocab_size and int(ids.min(initial=0)) >= 0:
        return
    wrong = (ids >= vocab_size) | (ids < 0)
    if padding is not None:
        wrong &= ids != padding
    if wrong.any():
        index = tuple(map(int, np.argwhere(wrong)[0]))
        raise not_in_vocabulary(int(ids[index]), vocab_size, place=place(*index), where=where)


def not_in_vocabulary(number: int, vocab_size: int, *, place: str = "", where: object = "") -> DataError:
    """Returns the error for a token id outside a vocabulary."""
    return DataError(
        f"token {number}{place and f' at {place}'} is outside the vocabulary of {vocab_size:,} ids",
        where=where,
        fix="Use the tokenizer that the ids were made with; `groundup tokens verify` finds all such ids of a"
        " data set.",
    )


def require_same_tokenizer(
    found: str,
    expected: str,
    *,
    where: object,
    what: str,
    other: str,
    fix: str,
    error: type[GroundupError] = DataError,
) -> None:
    """Checks that two things were made with the same tokenizer.

    Args:
        found: Fingerprint of the tokenizer of the one.
        expected: Fingerprint of the tokenizer of the other.
        where: The one, a file or folder.
        what: The verb between it and its tokenizer, e.g. "was built with".
        other: The other with its verb, e.g. "the model has".
        fix: What to do.
        error: Class of the refusal.

    Raises:
        GroundupError: They are not, of class ``error``.
    """
    if found != expected:
        raise error(f"{what} the tokenizer {found}, {other} {expected}", where=where, fix=fix)
