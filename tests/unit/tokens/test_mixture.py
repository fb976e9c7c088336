import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.tokens.sampling.dataset import TokenDataset
from groundup.tokens.sampling.mixture import Interleaving, MixtureDataset
from tests.unit.tokens.sources import ArraySource

weights_of = st.lists(
    st.one_of(st.floats(1e-9, 1e9), st.integers(1, 5).map(float), st.just(0.0)), min_size=1, max_size=12
).filter(any)


@given(weights=weights_of)
@settings(deadline=None)
def test_every_prefix_holds_each_share_to_within_two_samples(weights: list[float]) -> None:
    length = 600
    sources, numbers = Interleaving(weights).at(np.arange(length))
    taken = (sources[:, None] == np.arange(len(weights))).cumsum(0)
    assert np.array_equal(taken[np.arange(length), sources] - 1, numbers)  # each source counts on
    shares = np.array(weights) / sum(weights)
    wanted = np.arange(1, length + 1)[:, None] * shares
    assert np.abs(taken - wanted).max() < 1.65
    assert not taken[-1][shares == 0].any()


@given(weights=weights_of, length=st.integers(0, 10**6), first=st.integers(0, 10**12))
@settings(deadline=None)
def test_counts_and_any_position_agree(weights: list[float], length: int, first: int) -> None:
    order = Interleaving(weights)
    before, after = order.counts(first), order.counts(first + 50)
    sources, numbers = order.at(np.arange(first, first + 50))
    for source in range(len(weights)):
        mine = numbers[sources == source]
        assert mine.tolist() == list(range(before[source], after[source]))
    assert sum(order.counts(length)) == length


@given(weights=weights_of, limits=st.data())
@settings(deadline=None)
def test_the_longest_prefix_within_limits(weights: list[float], limits) -> None:
    order = Interleaving(weights)
    allowed = [limits.draw(st.integers(0, 300)) for _ in weights]
    longest = order.longest(allowed)

    def fits(length: int) -> bool:
        return all(count <= limit for count, limit in zip(order.counts(length), allowed, strict=True))

    assert fits(longest)
    assert not fits(longest + 1)


def test_two_sources_take_turns_as_rounding_says() -> None:
    assert Interleaving([3, 1]).at(np.arange(8))[0].tolist() == [0, 1, 0, 0, 0, 1, 0, 0]
    assert Interleaving([1, 1]).at(np.arange(4))[0].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0], [float("nan")], [float("inf")]])
def test_refuses_weights_that_mean_nothing(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="not all 0"):
        Interleaving(weights)


def _mixture() -> MixtureDataset:
    parts = [
        TokenDataset(ArraySource(np.arange(size) + 1000 * number, [size]), sequence_length=4, seed=3)
        for number, size in enumerate((101, 41, 9))
    ]
    return MixtureDataset(parts, Interleaving([0.5, 0.3, 0.2]), name="mixture")


@given(cuts=st.lists(st.integers(1, 37), min_size=1, max_size=10))
def test_the_stream_is_the_same_for_any_ranks_workers_and_restarts(cuts: list[int]) -> None:
    first, hashed = 0, hashlib.sha256()
    for count in cuts:
        hashed.update(_mixture().batch(first, count).tobytes())  # a new process each time
        first += count
    whole = _mixture().batch(0, first)
    assert hashed.digest() == hashlib.sha256(whole.tobytes()).digest()
    for num_ranks in (2, 3):  # rank r takes samples r, r + num_ranks, ...
        ranks = [
            [_mixture().batch(index, 1)[0] for index in range(rank, first, num_ranks)]
            for rank in range(num_ranks)
        ]
        for index in range(first):
            assert np.array_equal(ranks[index % num_ranks][index // num_ranks], whole[index])


def test_the_stream_is_pinned() -> None:
    """It may never change: runs are continued with it. A hash of the first 1,000 samples."""
    digest = hashlib.sha256(_mixture().batch(0, 1000).astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "65e787e2f69e220d"


def test_spans_and_starts_follow_the_interleaving() -> None:
    mixture = _mixture()
    for ordered in (False, True):
        batch, starts = mixture.batch(0, 60, ordered=ordered), mixture.document_starts(0, 60, ordered=ordered)
        assert np.array_equal(starts, batch % 1000 == 0)
        for index in range(60):
            (span,) = mixture.spans(index, ordered=ordered)
            assert np.array_equal(span.source.tokens[span.begin : span.end], batch[index])


def test_an_ordered_mixture_reads_no_sample_twice() -> None:
    mixture = _mixture()
    first = mixture.batch(0, mixture.num_samples, ordered=True)[:, 0].tolist()
    assert len(set(first)) == mixture.num_samples
    assert sum(token >= 2000 for token in first) == 2  # all that the smallest source has
    again = mixture.batch(0, mixture.num_samples + 1, ordered=True)[:, 0].tolist()
    assert len(set(again)) == mixture.num_samples
