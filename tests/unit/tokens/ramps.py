"""Sizes of batches, growing or not, as hypothesis draws them."""

from hypothesis import strategies as st

from groundup.tokens.sampling.batch_ramp import BatchRamp, BatchSizes


@st.composite
def ramps(draw):
    start, increment = draw(st.integers(1, 40)), draw(st.integers(1, 20))
    full = start + increment * draw(st.integers(0, 12))
    return BatchSizes(full, BatchRamp(start=start, increment=increment, samples=draw(st.integers(1, 3000))))


def batch_sizes():
    return st.one_of(st.integers(1, 16).map(BatchSizes), ramps())
