"""Changes with which a run fits, and the search for layouts."""

import dataclasses

import pytest

from groundup.core.config import resolve
from groundup.parallel.validate import validate_layout
from groundup.plan.device_table import GIB
from groundup.plan.fitting import best_of_each, fitting_changes, search
from groundup.plan.kernel_time import Rates
from groundup.plan.rank_memory import highest
from groundup.plan.run_step import step_of_run
from groundup.plan.step_time import Machines
from groundup.train.config import TrainConfig

MEDIUM = (
    *("run_dir=run", "data.path=data", "num_steps=100", "model.kind=gpt2", "model.vocab_size=50257"),
    *(
        "model.max_sequence_length=1024",
        "model.num_layers=24",
        "model.hidden_size=1024",
        "model.num_heads=16",
    ),
    *("model.ffn_size=4096", "data.sequence_length=1024", "micro_batch_size=8", "global_batch_size=32"),
)


def config(*overrides: str) -> TrainConfig:
    return resolve(TrainConfig, overrides=(*MEDIUM, *overrides)).value


def changes(run: TrainConfig, gib: float):
    layout = run.layout.over(run.layout.num_ranks)
    return fitting_changes(run, step_of_run(run, layout, "bf16"), gib * GIB)


@pytest.mark.parametrize("overrides", [(), ("layout.dp=4",), ("layout.dp=4", "layout.zero=1", "layout.tp=2")])
@pytest.mark.parametrize("gib", [14, 10, 7, 4])
def test_what_is_proposed_fits(overrides, gib):
    run = config(*overrides)
    found = changes(run, gib)
    assert found
    for change in found:
        changed = config(*overrides, *(f"{key}={value}" for key, value in change.settings.items()))
        layout = changed.layout.over(changed.layout.num_ranks)
        total = highest(step_of_run(changed, layout, "bf16")).total
        assert total == change.total <= gib * GIB
        assert layout.num_ranks == change.ranks


def test_the_cheapest_change_comes_first_and_none_is_superfluous():
    first = changes(config(), 14)[0]
    assert first.settings == {"recompute.mode": "selective"}
    added, *more = changes(config(), 5)
    assert added.ranks == 1 and all(one.ranks > 1 for one in more)
    assert len(added.settings) > 1
    for key in added.settings:
        fewer = config(*(f"{name}={value}" for name, value in added.settings.items() if name != key))
        layout = fewer.layout.over(fewer.layout.num_ranks)
        assert key == "layout.dp" or highest(step_of_run(fewer, layout, "bf16")).total > 5 * GIB
    assert changes(config(), 0.1) == []


def test_layers_in_fp8_are_not_shared():
    machines = Machines(rates=Rates(flops=1e14), peak=1e14, link_gb=300)
    shared = []
    for run in (config(), config("precision=fp8")):
        step = step_of_run(run, run.layout.over(1), "bf16")
        found, _, _ = search(run, step, ranks=8, capacity=8 * GIB, machines=machines)
        shared.append(
            any("layout.tp" in one.settings for one in found)
            or any("layout.tp" in one.settings for one in changes(run, 4))
        )
    assert shared == [True, False]


def test_a_search_finds_legal_layouts_that_fit_the_fastest_first():
    run, machines = config(), Machines(rates=Rates(flops=1e14), peak=1e14, link_gb=300)
    step = step_of_run(run, run.layout.over(1), "bf16")
    found, legal, least = search(run, step, ranks=8, capacity=8 * GIB, machines=machines)
    assert 0 < len(found) < legal and least <= min(one.total for one in found)
    times = [one.time.total for one in found]
    assert times == pytest.approx(sorted(times), rel=0.01)
    for one in found[:: max(1, len(found) // 20)]:
        changed = config(*(f"{key}={value}" for key, value in one.settings.items()))
        validate_layout(
            changed.layout,
            changed.model,
            sequence_length=1024,
            batch_sizes=[32],
            micro_batch_size=changed.micro_batch_size,
            world_size=8,
        )
        assert highest(step_of_run(changed, changed.layout.over(8), "bf16")).total == one.total <= 8 * GIB
    best = best_of_each(found)
    assert best[0] == found[0] and len({str(dataclasses.astuple(one)) for one in best}) == len(best)
    assert search(run, step, ranks=8, capacity=1e6, machines=machines)[0] == []
