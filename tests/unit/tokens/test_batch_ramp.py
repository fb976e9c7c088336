"""The sizes of a growing batch: Megatron-LM's, and consistent with each other however they are asked for."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.tokens.sampling.batch_ramp import BatchRamp, BatchSizes
from tests.unit.tokens.ramps import ramps


def megatrons_size(samples, *, start, increment, ramp_samples, full):
    """As ``--rampup-batch-size`` is documented: one more increment for each equal part of the samples."""
    if samples > ramp_samples:
        return full
    return start + increment * (samples * ((full - start) // increment) // ramp_samples)


@given(sizes=ramps(), num_steps=st.integers(0, 150))
def test_every_view_of_a_ramp_is_the_same(sizes, num_steps):
    ramp, position = sizes.ramp, 0
    for step, (begin, size) in enumerate(sizes.steps(0, num_steps)):
        assert begin == position == sizes.after(step)
        assert sizes.after(num_steps - step, begin=begin) == sizes.after(num_steps)
        assert size == sizes.at(begin)
        if sizes.full > ramp.start:
            assert size == megatrons_size(
                begin, start=ramp.start, increment=ramp.increment, ramp_samples=ramp.samples, full=sizes.full
            )
        assert sizes.steps_to(position) == pytest.approx(step)
        assert sizes.steps_to(position + size / 2) == pytest.approx(step + 0.5)
        assert sizes.steps_within(position) == sizes.steps_within(position + size - 1) == step
        position += size
    assert position == sizes.after(num_steps)


def test_the_example_of_megatrons_help():
    """``--rampup-batch-size 16 8 300000`` to 1024: 126 growths, 2380 samples each."""
    sizes = BatchSizes(1024, BatchRamp(start=16, increment=8, samples=300_000))
    steps = list(sizes.steps(0, 2000))
    assert [size for size, _ in itertools.groupby(size for _, size in steps)] == list(sizes.every)
    assert list(sizes.every) == list(range(16, 1025, 8))
    assert sum(size == 16 for _, size in steps) == 149  # 2381 samples in steps of 16
    assert next(begin for begin, size in steps if size == 1024) >= 300_000
    assert sizes.after(2000) == steps[-1][0] + 1024


def test_without_a_ramp_all_steps_are_alike():
    for sizes in (BatchSizes(8), BatchSizes(8, BatchRamp(start=8, increment=4, samples=100))):
        assert sizes.after(10, begin=3) == 83
        assert sizes.steps_to(20) == 2.5
        assert {size for _, size in sizes.steps(0, 30)} == {8}
        assert sizes.every == (8,)


@pytest.mark.parametrize(
    ("ramp", "expected"),
    [
        ({"start": 16, "increment": 4, "samples": 9}, "start 16 is more than global_batch_size 8"),
        ({"start": 3, "increment": 2, "samples": 9}, "from 3 past global_batch_size 8"),
        ({"start": 4}, "needs start, increment and samples"),
        ({"samples": 4}, "no effect with start 0"),
    ],
)
def test_a_ramp_that_leads_nowhere_is_refused(ramp, expected):
    with pytest.raises(ValueError, match=expected):
        BatchSizes(8, BatchRamp(**ramp))
