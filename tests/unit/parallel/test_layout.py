import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.parallel.layout import (
    Layout,
    PipelineConfig,
    ranges,
    split_layers,
    stage_reasons,
    stages_of_rank,
    stages_per_rank,
)


def cost_of(counts: list[int], first: float, last: float) -> float:
    costs = [float(count) for count in counts]
    costs[0] += first
    costs[-1] += last
    return max(costs)


@given(
    num_stages=st.integers(1, 4),
    more=st.integers(0, 6),
    first=st.sampled_from([0.0, 0.5, 2.0]),
    last=st.sampled_from([0.0, 0.7, 1.0, 3.3]),
)
def test_no_other_split_has_a_cheaper_dearest_stage(
    num_stages: int, more: int, first: float, last: float
) -> None:
    num_layers = num_stages + more
    counts = split_layers(num_layers, num_stages, layer_cost=1.0, first_cost=first, last_cost=last)
    assert sum(counts) == num_layers
    assert min(counts) >= 1
    others = (
        split
        for split in itertools.product(range(1, num_layers + 1), repeat=num_stages)
        if sum(split) == num_layers
    )
    assert cost_of(counts, first, last) == min(cost_of(list(other), first, last) for other in others)


def test_the_head_of_gpt2_weighs_as_much_as_five_layers_and_a_half() -> None:
    """50,304 x 768 weights against 12 x 768^2: the last of four stages gets no more than its one layer."""
    layer, head = 12 * 768**2, 50_304 * 768
    assert split_layers(12, 4, layer_cost=layer, first_cost=0, last_cost=head) == [4, 4, 3, 1]
    assert split_layers(12, 2, layer_cost=layer, first_cost=0, last_cost=head) == [9, 3]


def test_ranges_follow_each_other() -> None:
    assert ranges([2, 1, 3]) == [range(0, 2), range(2, 3), range(3, 6)]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
@pytest.mark.parametrize("pp", [2, 4])
def test_each_stage_has_one_rank(schedule, pp: int) -> None:
    pipeline = PipelineConfig(schedule=schedule)
    stages = [stage for rank in range(pp) for stage in stages_of_rank(pipeline, pp, rank)]
    assert sorted(stages) == list(range(pp * stages_per_rank(pipeline)))


@pytest.mark.parametrize(
    ("changes", "num_layers", "num_micro_batches", "reason"),
    [
        ({}, 1, 4, "num_layers 1 are fewer than the stages of pp 2"),
        ({"schedule": "interleaved"}, 3, 4, "3 are fewer than the stages of pp 2 x 2 stages a rank"),
        ({}, 4, 1, "1 micro-batches a rank are fewer than the 2 stages"),
        ({"schedule": "interleaved"}, 4, 1, "1 micro-batches a rank are not a multiple of pp 2"),
        ({"schedule": "interleaved"}, 4, 5, "5 micro-batches a rank are not a multiple of pp 2"),
        ({"schedule": "interleaved", "stages_per_rank": 1}, 4, 4, "needs 2 stages a rank or more"),
        ({"stages_per_rank": 2}, 4, 4, "1f1b has 1 stages a rank"),
        ({"layers": (1, 1, 2)}, 4, 4, "pipeline.layers names 3 stages, pp 2 has 2"),
        ({"layers": (1, 2)}, 4, 4, "pipeline.layers adds up to 3, num_layers is 4"),
        ({"layers": (4, 0)}, 4, 4, "pipeline.layers gives a stage no layer"),
    ],
)
def test_what_cannot_work_says_why(changes, num_layers: int, num_micro_batches: int, reason: str) -> None:
    layout = Layout(pp=2, pipeline=PipelineConfig(**changes))
    found = stage_reasons(layout, num_layers=num_layers, num_micro_batches=num_micro_batches)
    assert [one for one in found if reason in one], found


def test_without_a_pipeline_its_settings_are_refused() -> None:
    assert stage_reasons(Layout(), num_layers=1, num_micro_batches=1) == []
    by_hand = Layout(pipeline=PipelineConfig(layers=(1, 1)))
    assert stage_reasons(by_hand, num_layers=2, num_micro_batches=1) == [
        "pipeline.layers has no effect with pp 1"
    ]
