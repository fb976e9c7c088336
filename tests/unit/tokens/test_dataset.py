import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.core.errors import DataError
from groundup.tokens.sampling.dataset import TokenDataset
from tests.unit.tokens.sources import ArraySource


def _dataset(num_tokens: int = 101, length: int = 4, seed: int = 1) -> TokenDataset:
    source = ArraySource(np.arange(num_tokens, dtype=np.uint16), [num_tokens])
    return TokenDataset(source, sequence_length=length, seed=seed)


def test_an_epoch_holds_each_window_once() -> None:
    data = _dataset()
    assert data.num_samples == 25
    for epoch in range(3):
        batch = data.batch(epoch * 25, 25)
        assert batch.shape == (25, 5)
        assert batch.dtype == np.int64
        assert sorted(batch[:, 0].tolist()) == list(range(0, 100, 4))
        assert np.array_equal(batch, batch[:, :1] + np.arange(5))


def test_epochs_and_seeds_differ() -> None:
    data = _dataset()
    assert not np.array_equal(data.batch(0, 25), data.batch(25, 25))
    assert not np.array_equal(data.batch(0, 25), _dataset(seed=2).batch(0, 25))


@given(cuts=st.lists(st.integers(1, 17), min_size=1, max_size=10))
def test_the_stream_does_not_depend_on_how_it_is_cut(cuts: list[int]) -> None:
    data, first, hashed = _dataset(), 0, hashlib.sha256()
    for count in cuts:
        hashed.update(data.batch(first, count).tobytes())
        first += count
    whole = _dataset().batch(0, first)
    assert hashed.digest() == hashlib.sha256(whole.tobytes()).digest()
    assert np.array_equal(data.batch(first - 1, 1)[0], whole[-1])


def test_ordered_windows_come_in_file_order() -> None:
    data = _dataset()
    assert data.batch(0, 2, ordered=True).tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    assert data.batch(24, 2, ordered=True)[:, 0].tolist() == [96, 0]


def test_the_last_partial_window_is_left_out() -> None:
    assert _dataset(num_tokens=104).num_samples == 25
    assert _dataset(num_tokens=105).num_samples == 26
    with pytest.raises(DataError, match="one sample needs 5"):
        _dataset(num_tokens=4)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    length=st.integers(1, 12),
    seed=st.integers(0, 3),
    data=st.data(),
)
def test_starts_and_spans_say_where_the_tokens_of_a_sample_lie(lengths, length, seed, data) -> None:
    total = sum(lengths)
    source = ArraySource(np.arange(total), lengths)
    first = data.draw(st.integers(0, len(lengths) - 1))
    last = data.draw(st.integers(first + 1, len(lengths)))
    if sum(lengths[first:last]) <= length:
        return
    dataset = TokenDataset(source, (first, last), sequence_length=length, seed=seed)
    begins = {sum(lengths[:k]) for k in range(len(lengths)) if lengths[k]}
    for ordered in (False, True):
        count = 2 * dataset.num_samples
        batch = dataset.batch(0, count, ordered=ordered)  # token = its position in the source
        starts = dataset.document_starts(0, count, ordered=ordered)
        assert np.array_equal(starts, np.isin(batch, list(begins)))
        for index in range(count):
            pieces = [np.arange(span.begin, span.end) for span in dataset.spans(index, ordered=ordered)]
            assert np.array_equal(np.concatenate(pieces), batch[index])
