import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from groundup.core.errors import ConfigError
from groundup.tokens.sampling.batch_ramp import BatchSizes
from groundup.tokens.sampling.feasibility import (
    MixturePlan,
    SourcePlan,
    find_mend,
    find_problem,
    samples_in,
)
from groundup.tokens.sampling.split_documents import SPLITS, split_ranges
from tests.unit.tokens.ramps import batch_sizes
from tests.unit.tokens.sources import ArraySource

lengths_of = st.one_of(
    st.just([3]),  # one document of three tokens
    st.lists(st.integers(1, 40), min_size=1, max_size=25),
)
splits = (
    st.lists(st.integers(0, 1000), min_size=1, max_size=3).filter(any).map(lambda s: ",".join(map(str, s)))
)


@st.composite
def plans(draw) -> MixturePlan:
    size = draw(st.integers(1, 6))
    proportional = draw(st.booleans())
    weights = [
        None if proportional else draw(st.sampled_from([0.001, 0.3, 0.999, 1.0, 20.0])) for _ in range(size)
    ]
    if size > 1 and not proportional and draw(st.booleans()):
        weights[0] = 0.0

    def source(key: str, split: str, weight: float | None) -> SourcePlan:
        lengths = draw(lengths_of)
        return SourcePlan(
            key=key,
            source=ArraySource(range(sum(lengths)), lengths),
            split=split,
            weight=weight,
            max_epochs=draw(st.integers(0, 4)) if split else 0,
        )

    return MixturePlan(
        sources=tuple(source(f"data.sources.s{k}", draw(splits), weights[k]) for k in range(size)),
        validation=(source("data.validation.v", "", None),) if draw(st.booleans()) else None,
        sequence_length=draw(st.integers(1, 100)),
        num_steps=draw(st.integers(1, 300)),
        batch_sizes=draw(batch_sizes()),
        needs=("train", *draw(st.sets(st.sampled_from(SPLITS)))),
    )


@given(plan=plans())
@settings(max_examples=500, deadline=None)
def test_what_is_accepted_can_be_trained_and_what_is_proposed_is_accepted(plan: MixturePlan) -> None:
    problem = find_mend(plan)
    if problem is None:
        _assert_possible(plan)
        return
    assert all(problem.changes)
    for change in problem.changes:
        mended = plan.changed(change)
        left = find_mend(mended)
        if problem.enough:
            assert left is None, (problem, change)
            _assert_possible(mended)
        else:  # another thing is in the way
            assert left is not None
            assert left.what != problem.what


def _assert_possible(plan: MixturePlan) -> None:
    """By counting, without the planner's own functions."""
    asked = plan.batch_sizes.after(plan.num_steps)
    counts = plan.interleaving().counts(asked)
    for source, count in zip(plan.used, counts, strict=True):
        samples = samples_in(source.num_tokens("train"), plan.sequence_length)
        assert samples > 0
        if source.max_epochs:
            assert count <= source.max_epochs * samples
    for name in ("validation", "test"):
        if name in plan.needs:
            held_out = getattr(plan, name) or plan.used
            assert any(samples_in(source.num_tokens(name), plan.sequence_length) for source in held_out)


def _evenly(size: int, **limits: int) -> MixturePlan:
    """Sources of 9 samples each, "a", "b" and so on, of which 8,000 samples are asked."""
    sources = [
        SourcePlan(
            key=f"data.sources.{key}",
            source=ArraySource(range(100), [10] * 10),
            split="1",
            weight=1.0,
            max_epochs=limits.get(key, 0),
        )
        for key in "abcdefgh"[:size]
    ]
    return MixturePlan(sources=tuple(sources), sequence_length=10, num_steps=1000, batch_sizes=BatchSizes(8))


def test_one_limited_source_of_many() -> None:
    problem = find_mend(_evenly(8, a=1))
    assert problem
    assert problem.changes == (
        {"data.sources.a.max_epochs": 112},  # 1,000 of 9 samples
        {"num_steps": 9},
        {"data.sources.a.weight": 0.00697},  # 7 * 8 / 7,992 and a bit less
    )


def test_all_sources_that_are_read_too_often_are_named_at_once() -> None:
    problem = find_mend(_evenly(4, a=1, c=2))
    assert problem
    assert problem.enough
    assert problem.changes[0] == {"data.sources.a.max_epochs": 223, "data.sources.c.max_epochs": 223}
    assert len(problem.changes) == 2  # no weight of one of them is enough


@given(plan=plans())
@settings(max_examples=200, deadline=None)
def test_only_more_text_mends_what_has_no_mend(plan: MixturePlan) -> None:
    problem = find_mend(plan)
    if problem is None or problem.changes:
        return
    # Even the shortest samples, without any bound on epochs, do not help.
    easiest = dataclasses.replace(
        plan,
        sequence_length=1,
        sources=tuple(dataclasses.replace(source, max_epochs=0) for source in plan.sources),
    )
    assert find_mend(easiest) is not None


@pytest.mark.parametrize(
    ("split", "size", "expected"),
    [
        ("969,30,1", 200, [(0, 194), (194, 200), (200, 200)]),
        ("969,30,1", 1000, [(0, 969), (969, 999), (999, 1000)]),
        ("90/10", 7, [(0, 6), (6, 7), (7, 7)]),
        ("1", 5, [(0, 5), (5, 5), (5, 5)]),
        ("1,1", 3, [(0, 1), (1, 3), (3, 3)]),  # 1.5 rounds to 2 twice: one too many, taken from the first
        ("1,1,1", 1, [(0, 1), (1, 1), (1, 1)]),
    ],
)
def test_shares_round_as_megatron_rounds(split: str, size: int, expected: list[tuple[int, int]]) -> None:
    assert list(split_ranges(split, size).values()) == expected


@given(
    shares=st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=3),
    size=st.integers(0, 5000),
)
def test_splits_partition_the_documents(shares: list[float], size: int) -> None:
    assume(sum(shares) > 0)
    ranges = list(split_ranges(",".join(map(str, shares)), size).values())
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    assert all(begin <= end for begin, end in ranges)
    assert [end for _, end in ranges[:-1]] == [begin for begin, _ in ranges[1:]]


@pytest.mark.parametrize("split", ["", "a,b", "1,-1", "0,0,0", "1,2,3,4", "nan", "inf,1"])
def test_refuses_a_malformed_split(split: str) -> None:
    with pytest.raises(ConfigError, match="not a split"):
        split_ranges(split, 10)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    shares=st.lists(st.integers(0, 1000), min_size=1, max_size=3),
    length=st.integers(1, 200),
    needs=st.sets(st.sampled_from(SPLITS), min_size=1),
)
@settings(max_examples=400, deadline=None)
def test_each_proposed_change_mends_the_plan(
    lengths: list[int],
    shares: list[int],
    length: int,
    needs: set[str],
) -> None:
    assume(sum(shares) > 0)
    source = ArraySource(range(sum(lengths)), lengths)
    settings = {"split": ",".join(map(str, shares)), "sequence_length": length, "needs": needs}
    problem = find_problem(source, **settings)
    if problem is None:
        ranges = split_ranges(settings["split"], len(lengths))
        assert all(sum(lengths[slice(*ranges[name])]) > length for name in needs)
        return
    for change in problem.changes:
        assert find_problem(source, **{**settings, **change}) is None, (problem, change)
    if not problem.changes:  # nothing but more text: each needed split wants two tokens of its own
        for first in range(len(lengths) + 1):
            for second in range(first, len(lengths) + 1):
                split = f"{first},{second - first},{len(lengths) - second}"
                assert find_problem(source, split, 1, needs)
