"""Schedules stay in [0, 1], join without a jump, and end where they say."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.train.schedules import lr_ratio
from groundup.train.schedules.cosine import Cosine
from groundup.train.schedules.warmup import Fraction, Steps, Tokens
from tests.instances import SCHEDULES


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@given(horizon=st.integers(1, 5000), share=st.floats(0, 0.9))
def test_in_range_and_continuous(schedule, horizon, share):
    warmup = share * horizon
    ratios = [
        lr_ratio(schedule, step, warmup_steps=warmup, horizon_steps=horizon)
        for step in range(1, min(horizon, 400) + 1)
    ]
    assert all(0 <= ratio <= 1 for ratio in ratios)
    steepest = 1 / max(warmup, 1) + 20 / max(1, horizon - warmup) ** 0.5
    assert all(abs(b - a) <= steepest for a, b in itertools.pairwise(ratios))


@pytest.mark.parametrize(
    ("schedule", "last"),
    list(zip(SCHEDULES, [0.1, 0.0, 1.0, 0.05, 0.0], strict=True)),
    ids=lambda value: repr(value),
)
def test_peak_and_end(schedule, last):
    at = {
        step: lr_ratio(schedule, step, warmup_steps=100, horizon_steps=1000)
        for step in (1, 50, 100, 1000, 5000)
    }
    assert at[1] == pytest.approx(0.01)
    assert at[50] == pytest.approx(0.5)
    assert at[100] == pytest.approx(1.0)
    assert at[1000] == pytest.approx(last)
    assert at[5000] == pytest.approx(last)


def test_cosine_is_half_way_in_the_middle():
    middle = lr_ratio(Cosine(min_ratio=0.2), 550, warmup_steps=100, horizon_steps=1000)
    assert middle == pytest.approx(0.6)


def test_warmup_by_steps_fraction_and_tokens():
    assert Steps(steps=715).in_steps(19073, float) == 715
    assert Fraction(fraction=0.01).in_steps(320000, float) == 3200
    assert Tokens(tokens=375e6).in_steps(19073, lambda tokens: tokens / 524288) == pytest.approx(
        715.26, abs=0.01
    )
