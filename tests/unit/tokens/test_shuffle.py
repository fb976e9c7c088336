from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.tokens.sampling.shuffle import Order


def test_is_a_bijection_for_every_small_size() -> None:
    for size in range(1, 2001):
        everything = np.arange(size)
        order = Order(size, seed=7, epoch=0)
        samples = order.sample(everything)
        assert np.array_equal(np.sort(samples), everything), size
        assert np.array_equal(order.position(samples), everything), size


@given(
    size=st.integers(1, 1 << 62),
    seed=st.integers(0, 1 << 64),
    epoch=st.integers(0, 1000),
    data=st.data(),
)
def test_is_invertible_at_any_size(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    order = Order(size, seed=seed, epoch=epoch)
    samples = order.sample(positions)
    assert samples.min() >= 0
    assert samples.max() < size
    assert order.position(samples).tolist() == positions


def test_is_pinned() -> None:
    # A run that continues on another version must see the same samples.
    assert Order(1000, seed=1234, epoch=0).sample(np.arange(8)).tolist() == PINNED_SMALL
    assert Order(10**12, seed=1, epoch=2).sample([0, 1, 999_999_999_999]).tolist() == PINNED_LARGE


PINNED_SMALL = [834, 317, 347, 285, 45, 218, 466, 716]
PINNED_LARGE = [687438358234, 672142925697, 930986797303]


def test_seed_and_epoch_give_other_orders() -> None:
    everything = np.arange(1000)
    orders = {
        tuple(Order(1000, seed=seed, epoch=epoch).sample(everything).tolist())
        for seed in range(10)
        for epoch in range(10)
    }
    assert len(orders) == 100


def test_each_position_receives_each_sample_equally_often() -> None:
    size, draws = 10, 4000
    counts = np.zeros((size, size))
    for seed in range(draws):
        counts[np.arange(size), Order(size, seed=seed, epoch=0).sample(np.arange(size))] += 1
    expected = draws / size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    # (10 - 1)^2 = 81 degrees of freedom: 99.99% of fair shuffles stay below 135.
    assert chi_square < 135


def test_every_permutation_of_three_is_equally_likely() -> None:
    draws = 6000
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(draws):
        permutation = tuple(Order(3, seed=seed, epoch=0).sample(np.arange(3)).tolist())
        counts[permutation] = counts.get(permutation, 0) + 1
    assert len(counts) == 6
    chi_square = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert chi_square < 25.7  # 5 degrees of freedom, 99.99%


def test_neighbours_are_scattered() -> None:
    size = 100_000
    samples = Order(size, seed=3, epoch=1).sample(np.arange(size))
    steps = np.abs(np.diff(samples))
    assert np.count_nonzero(steps == 1) < 20  # 2 expected in a random order
    assert abs(steps.mean() / size - 1 / 3) < 0.005  # mean distance of two random points
    blocks = samples.reshape(100, -1) // (size // 100)
    counts = np.stack([np.bincount(block, minlength=100) for block in blocks])
    chi_square = ((counts - 10.0) ** 2 / 10.0).sum()
    assert 9801 - 700 < chi_square < 9801 + 700  # 99^2 degrees of freedom, 5 standard deviations
    longest = current = 1
    for before, after in pairwise(samples.tolist()):
        current = current + 1 if after > before else 1
        longest = max(longest, current)
    assert longest < 13  # rising runs of a random order: 13 or more has probability 2e-5


def test_refuses_what_is_outside() -> None:
    with pytest.raises(IndexError):
        Order(5, seed=0, epoch=0).sample([5])
    with pytest.raises(IndexError):
        Order(5, seed=0, epoch=0).sample([-1])
    with pytest.raises(ValueError, match="2\\*\\*62"):
        Order(0, seed=0, epoch=0)
