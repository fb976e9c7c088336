import numpy as np
import pytest

from groundup.core.errors import DataError
from groundup.core.vocabulary import require_token_ids


def _require(ids, vocab_size, **options):
    require_token_ids(ids, vocab_size, place=lambda row, column: f"{column} of {row}", where="x", **options)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64"])
def test_names_the_first_id_that_is_not_in_the_vocabulary(dtype):
    ids = np.array([[0, 4], [2, 9], [7, 1]], dtype=dtype)
    _require(ids, 10)
    _require(ids, 1 << 40)
    with pytest.raises(DataError, match="x: token 9 at 1 of 1 is outside the vocabulary of 9 ids"):
        _require(ids, 9)
    with pytest.raises(DataError, match=r"token 9 at 1 of 1 .* of 5 ids"):  # the first, not the least
        _require(ids, 5)
    _require(ids[:0], 1)


def test_padding_is_no_token():
    ids = np.array([[1, -5], [-1, 2]])
    _require(ids[:1], 3, padding=-5)
    with pytest.raises(DataError, match="token -1 at 0 of 1"):
        _require(ids, 3, padding=-5)
    with pytest.raises(DataError, match="token -5 at 1 of 0"):
        _require(ids, 3)
