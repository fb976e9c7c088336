import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from groundup.core.errors import ConfigError
from groundup.tokens.sampling.feasibility import SPLITS, find_problem, split_ranges
from tests.unit.tokens.sources import ArraySource


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
