"""The search among measured layouts, and the probes that measure them."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from groundup.core.config import resolve
from groundup.parallel.validate import layout_reasons
from groundup.plan.autotune import Choice, Measured, SearchSpace, hill_climb, quickest, search_space
from groundup.plan.devices import Devices
from groundup.plan.probe import WARMUP_STEPS, Probe
from groundup.train.config import TrainConfig

RUN = (
    *("run_dir=run", "data.path=data", "num_steps=100", "device=cpu", "model.kind=gpt2"),
    *("model.vocab_size=50257", "model.max_sequence_length=1024", "model.num_layers=12"),
    *("model.hidden_size=768", "model.num_heads=12", "model.ffn_size=3072", "data.sequence_length=1024"),
    *("micro_batch_size=8", "global_batch_size=32"),
)


def config(*overrides: str) -> TrainConfig:
    return resolve(TrainConfig, overrides=(*RUN, *overrides)).value


def space(run: TrainConfig, ranks: int, *, gib: float = 64, compiles: bool = False) -> SearchSpace:
    return search_space(run, Devices(memory_gib=gib, ranks=ranks, per_machine=8), "fp32", compiles=compiles)


def in_words(run: TrainConfig, choice: Choice) -> list[str]:
    return [f"{key}={value}".lower() for key, value in choice.settings(run).items()]


@pytest.mark.parametrize("overrides", [(), ("layout.dp=4", "layout.zero=1"), ("recompute.mode=full",)])
def test_settings_make_a_config_the_choice(overrides):
    run = config(*overrides)
    for choice in space(run, 4, compiles=True).choices:
        for one in (choice, dataclasses.replace(choice, compile=True)):
            changed = config(*overrides, *in_words(run, one))
            assert Choice.of(changed, 4) == one
            assert not layout_reasons(
                changed.layout,
                model=changed.model,
                sequence_length=1024,
                batch_sizes=[32],
                micro_batch_size=changed.micro_batch_size,
                world_size=4,
            )


def test_a_choice_keeps_all_that_is_learned():
    run = config()
    for choice in space(run, 2).choices:
        changed = choice.applied(run)
        kept = {"layout": run.layout, "micro_batch_size": 8, "recompute": run.recompute, "compile": None}
        assert dataclasses.replace(changed, **kept) == run


def test_what_other_settings_rule_out_is_not_tried():
    """Samples are drawn on one rank."""
    divided = [one.layout.ranks_of_a_copy for one in space(config(), 2).choices]
    assert max(divided) == 2
    sampling = space(config("sample.interval=10"), 2)
    assert [one.layout.ranks_of_a_copy for one in sampling.choices] == [1] * len(sampling.choices)


def test_what_does_not_fit_is_not_tried():
    run = config("micro_batch_size=32")
    assert space(run, 1).own is not None
    small = space(run, 1, gib=8)
    assert small.own is None
    assert {one.recompute.mode for one in space(run, 1).choices} == {"none"}
    kept = {one.micro_batch_size for one in small.choices if one.recompute.mode == "none"}
    assert kept and max(kept) == 8  # 32 take 20.5 GiB, 8 take 7.2
    none = space(run, 1, gib=0.5)
    assert (none.choices, none.firsts) == ((), ()) and none.least > 2**29


def test_neighbours_differ_in_one_thing():
    ways = space(config(), 4, compiles=True)
    start = Choice.of(config("layout.dp=4", "layout.zero=1", "micro_batch_size=4"), 4)
    near = ways.neighbours(start)
    assert len(near) == len(set(near))
    assert {one.micro_batch_size for one in near} == {2, 4, 8}
    assert {one.layout.zero for one in near} == {0, 1, 2, 3}
    assert [one.compile for one in near].count(True) == 1
    compiled = dataclasses.replace(start, compile=True)
    assert start in ways.neighbours(compiled)


def speeds(table: Callable[[Choice], float]) -> tuple[list[Choice], Callable[[Choice], Measured]]:
    seen: list[Choice] = []

    def measure(choice: Choice) -> Measured:
        seen.append(choice)
        speed = table(choice)
        return Measured(choice, speed, error="" if speed else "the GPU's memory is full")

    return seen, measure


def test_the_climb_ends_at_the_quickest():
    """Of a hill with its top at dp 2, tp 2, ZeRO 1, micro-batches of 4 and torch.compile."""

    def table(choice: Choice) -> float:
        size = choice.micro_batch_size
        speed = 1000.0 if (choice.layout.dp, choice.layout.tp) == (2, 2) else 500.0
        speed *= {0: 0.9, 1: 1.0, 2: 0.8, 3: 0.5}[choice.layout.zero]
        speed *= {1: 0.5, 2: 0.8, 4: 1.0, 8: 0.9}.get(size, 0.0)
        return speed * (1.2 if choice.compile else 1.0)

    seen, measure = speeds(table)
    ways = space(config("layout.dp=4"), 4, compiles=True)
    found = list(hill_climb(ways, measure, most_divisions=8))
    best = quickest(found)
    assert best is not None and best.tokens_per_second == 1200
    assert [one.choice for one in found] == seen and len(seen) == len(set(seen))
    assert seen[0] == ways.own
    assert len(seen) < len(ways.choices) * 2


def test_less_than_the_noise_is_no_gain():
    ways = space(config(), 1)
    own = ways.own
    seen, measure = speeds(lambda choice: 101.0 if choice.micro_batch_size > 8 else 100.0)
    list(hill_climb(ways, measure, most_divisions=1))
    assert own in seen and len(seen) <= 1 + 1 + 2 * 2  # own, the first, and what is beside each


def test_nothing_trains():
    seen, measure = speeds(lambda _: 0.0)
    found = list(hill_climb(space(config(), 2), measure, most_divisions=2))
    assert quickest(found) is None and all(one.error for one in found)
    assert len(seen) == 1 + 2 * 3  # the config's own, and each of two divisions with three micro-batches


class Trainer:
    """Writes the metrics of a run whose steps make so many tokens a second; each training is counted."""

    def __init__(self, rate: float = 1000.0, error: str = "") -> None:
        self.rate = rate
        self.error = error
        self.configs: list[TrainConfig] = []

    def __call__(self, file: Path) -> str:
        run = resolve(TrainConfig, file=file).value
        self.configs.append(run)
        run.run_dir.mkdir(parents=True)
        rows = [
            {
                "kind": "train",
                "tokens_per_second": self.rate if step > WARMUP_STEPS else 1.0,
                "memory_bytes": 100 + step,
            }
            for step in range(1, run.num_steps + 1)
        ]
        lines = [orjson.dumps(row) for row in [*rows, {"kind": "validation"}]]
        (run.run_dir / "metrics.jsonl").write_bytes(b"\n".join(lines))
        return self.error


def probe(folder: Path, trainer: Trainer, machine: str = "here", **options) -> Probe:
    run = config("run_dir=mine", "validation.num_batches=7", "batch_ramp.start=8", "batch_ramp.increment=8",
                 "batch_ramp.samples=100", "warmup.steps=50")  # fmt: skip
    journal = folder / "journal" / "autotune.jsonl"
    given = {"steps": 5, "seconds": 0.0, "journal": journal, "machine": machine, **options}
    return Probe(run, folder, trainer, **given)


def test_a_probe_is_a_short_run(tmp_path):
    trainer = Trainer()
    choice = Choice.of(config("micro_batch_size=4"), 1)
    found = probe(tmp_path, trainer).measure(choice)
    assert found == Measured(choice, 1000.0, memory=100 + WARMUP_STEPS + 5)
    (run,) = trainer.configs
    assert Choice.of(run, 1) == choice
    assert (run.num_steps, run.batch_sizes.every) == (WARMUP_STEPS + 5, (32,))
    assert (run.validation.num_batches, run.checkpoint.interval) == (1, run.num_steps)
    assert not run.run_dir.exists() and run.run_dir.is_relative_to(tmp_path)


def test_short_steps_are_measured_for_longer(tmp_path):
    trainer = Trainer(rate=32 * 1024 * 10.0)  # ten steps a second
    measure = probe(tmp_path, trainer, seconds=2.0).measure
    for size in (4, 2, 1):
        measure(Choice.of(config(f"micro_batch_size={size}"), 1))
    assert [run.num_steps - WARMUP_STEPS for run in trainer.configs] == [5, 20, 20]


def test_what_was_measured_is_not_measured_again(tmp_path):
    """Not by a later call either, but on another machine; half a line of one that was killed is nothing."""
    choice = Choice.of(config("micro_batch_size=4"), 1)
    other = Choice.of(config("micro_batch_size=2"), 1)
    first, second, elsewhere = Trainer(), Trainer(rate=9.0), Trainer(rate=5.0)
    found = probe(tmp_path, first).measure(choice)
    journal = tmp_path / "journal" / "autotune.jsonl"
    with journal.open("ab") as file:
        file.write(b'{"key": "ab')
    assert probe(tmp_path, first).measure(other).tokens_per_second == 1000.0
    assert probe(tmp_path, second).measure(choice) == found
    assert probe(tmp_path, second).measure(other).tokens_per_second == 1000.0
    assert second.configs == []
    assert probe(tmp_path, second).measure_again(choice).tokens_per_second == 9.0
    assert probe(tmp_path, elsewhere, machine="there").measure(choice).tokens_per_second == 5.0
    assert re.findall(rb'"micro_batch_size":(\d)', journal.read_bytes()) == [b"4", b"2", b"4"]


def test_what_failed_is_tried_again(tmp_path):
    choice = Choice.of(config("micro_batch_size=4"), 1)
    failed = probe(tmp_path, Trainer(error="out of memory")).measure(choice)
    assert failed == Measured(choice, 0.0, error="out of memory")
    assert probe(tmp_path, Trainer()).measure(choice).tokens_per_second == 1000.0
