"""Averages, growing batches, the spike guard and step dumps on several ranks: as on one process."""

import dataclasses
import math
from pathlib import Path

import orjson
import pytest
import torch

from groundup.checkpoint.native.folder import checkpoint_path
from groundup.checkpoint.native.load import TensorGroup
from groundup.cli.train import evaluate
from groundup.core.errors import TrainingError
from groundup.parallel.dtensor import local
from groundup.parallel.layout import Layout
from groundup.tokens.sampling.collate import Evaluation
from groundup.train.config import TrainConfig
from groundup.train.stability.replay import agreement, open_replayer
from tests.parallel.ranks import train_on_ranks
from tests.poisoned import PoisonedRun, poisoned, reading
from tests.runs import make_config, make_data, run

LAYOUTS = {
    "dp2": Layout(dp=2),
    "dp2-zero3": Layout(dp=2, zero=3),
    "tp2": Layout(tp=2),
    "cp2": Layout(cp=2),
    "pp2": Layout(pp=2),
}
SIZES = ("global_batch_size=8", "micro_batch_size=2")
LITTLE_HELD_OUT = "data.split=98,1,1"
SGD = ("optimizer.kind=sgd", "optimizer.lr=0.3")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def records_of(run_dir: Path, *kinds: str) -> list[dict]:
    lines = (run_dir / "metrics.jsonl").read_bytes().splitlines()
    return [record for record in map(orjson.loads, lines) if record["kind"] in kinds]


def curve_of(run_dir: Path) -> list[tuple[float, float, int]]:
    return [(r["loss"], r["grad_norm"], r["batch_size"]) for r in records_of(run_dir, "train")]


def on_ranks(config: TrainConfig, folder: Path) -> dict[str, TrainConfig]:
    return {
        name: dataclasses.replace(config, run_dir=folder / name, layout=layout)
        for name, layout in LAYOUTS.items()
    }


def with_evaluation(config: TrainConfig) -> None:
    run(config, evaluate=evaluate)


@pytest.mark.slow
def test_a_ramp_and_an_average_are_those_of_one_process(data: Path, tmp_path: Path) -> None:
    ramp = ("batch_ramp.start=4", "batch_ramp.increment=4", "batch_ramp.samples=12")
    more = (LITTLE_HELD_OUT, "ema.decay=0.5", "validation.interval=3", "validation.num_batches=4")
    config = make_config(data, tmp_path / "alone", *SIZES, *SGD, *ramp, *more)
    with_evaluation(config)
    others = on_ranks(config, tmp_path)
    train_on_ranks(2, list(others.values()), tmp_path, work=with_evaluation)
    kinds = ("validation", "validation_ema", "test", "test_ema")
    held_out = [record["loss"] for record in records_of(config.run_dir, *kinds)]
    assert len(held_out) == 6
    average = TensorGroup(checkpoint_path(tmp_path / "alone/checkpoints", 6), "ema")
    for name, other in others.items():
        for mine, theirs in zip(curve_of(other.run_dir), curve_of(config.run_dir), strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5), name
        found = [record["loss"] for record in records_of(other.run_dir, *kinds)]
        assert found == pytest.approx(held_out, rel=1e-5), name
        theirs = TensorGroup(checkpoint_path(other.run_dir / "checkpoints", 6), "ema")
        assert set(theirs) == set(average)
        for key in average:
            torch.testing.assert_close(theirs.read(key), average.read(key), rtol=1e-4, atol=1e-6)
    # The average of any layout goes on under any other, across a change of the batch's size.
    cut = dataclasses.replace(config, num_steps=2, schedule_steps=6)
    firsts = on_ranks(cut, tmp_path / "cut")
    train_on_ranks(2, list(firsts.values()), tmp_path)
    names = list(LAYOUTS)
    seconds = [
        dataclasses.replace(firsts[name], num_steps=6, layout=LAYOUTS[names[(number + 1) % len(names)]])
        for number, name in enumerate(names)
    ]
    train_on_ranks(2, seconds, tmp_path)
    for second in seconds:
        theirs = TensorGroup(checkpoint_path(second.run_dir / "checkpoints", 6), "ema")
        for key in average:
            torch.testing.assert_close(theirs.read(key), average.read(key), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rollback", pytest.param("skip", marks=pytest.mark.exhaustive)])
def test_ranks_decide_as_one_process_does(data: Path, tmp_path: Path, kind: str) -> None:
    rule = (
        f"spike_guard.kind={kind}",
        "spike_guard.window=8",
        "spike_guard.warmup=6",
        "spike_guard.grad_norm_deviations=50",
    )
    rule += ("spike_guard.back=4",) if kind == "rollback" else ()
    config = make_config(
        data, tmp_path / "alone", *SIZES, *rule, "num_steps=26", "checkpoint.interval=5", "optimizer.lr=1e-2"
    )
    poison = (176, 184)  # of eight samples a step: the 23rd
    with reading(poisoned(*poison)):
        run(config)
    alone = records_of(config.run_dir, "outlier")
    assert [record["outlier_step"] for record in alone] == [23]
    others = on_ranks(config, tmp_path)
    train_on_ranks(2, list(others.values()), tmp_path, work=PoisonedRun(*poison))
    names = ("step", "outlier_step", "samples", "action")
    for name, other in others.items():
        found = records_of(other.run_dir, "outlier")
        assert [[one[key] for key in names] for one in found] == [
            [one[key] for key in names] for one in alone
        ]
        losses = [record["loss"] for record in records_of(other.run_dir, "train")]
        expected = [record["loss"] for record in records_of(config.run_dir, "train")]
        assert losses == pytest.approx(expected, rel=1e-3), name  # AdamW, 26 steps


def spoilt(config: TrainConfig) -> None:
    """A bias becomes infinite after step 2; the run fails, as it should."""

    def spoil(run_, dataset, num_batches) -> Evaluation:
        if run_.state.step == 2:
            bias = dict(run_.state.model.named_parameters()).get("layers.1.mlp.w2.bias")
            with torch.no_grad():
                if bias is not None and local(bias).numel():
                    local(bias)[0] = math.inf
        return Evaluation(total_loss=0.0, num_tokens=1, num_bytes=1)

    with pytest.raises(TrainingError) as failed:
        run(config, evaluate=spoil)
    (config.run_dir / f"message-{torch.distributed.get_rank()}").write_text(str(failed.value))


@pytest.mark.slow
def test_a_step_dump_of_ranks_is_replayed_by_one_process(data: Path, tmp_path: Path) -> None:
    config = make_config(data, tmp_path / "x", *SIZES, "validation.interval=1")
    others = on_ranks(config, tmp_path)
    train_on_ranks(2, list(others.values()), tmp_path, work=spoilt)
    for name, other in others.items():
        first, second = ((other.run_dir / f"message-{rank}").read_text() for rank in (0, 1))
        assert first == second, name
        if name == "pp2":
            assert "which module was the first is found by the replay" in first
        else:
            assert "numbers of the weight layers.1.mlp.w2.bias" in first, name
            assert "in 4 of 4 micro-batches" in first, name
        replayer = open_replayer(other.run_dir / "failures/step-3", device="cpu", precision=None)
        result = replayer.run()
        assert agreement(result, replayer.dump, replayer.precision), name
        assert result.findings[0].what.endswith("numbers of the weight layers.1.mlp.w2.bias")


@pytest.mark.slow
def test_step_dumps_of_outliers_give_the_same_whatever_the_layout(data: Path, tmp_path: Path) -> None:
    rule = (
        "spike_guard.kind=skip",
        "spike_guard.window=8",
        "spike_guard.warmup=6",
        "spike_guard.step_dump=true",
    )
    config = make_config(data, tmp_path / "x", *SIZES, *rule, "num_steps=23", "optimizer.lr=1e-2")
    others = on_ranks(config, tmp_path)
    train_on_ranks(2, list(others.values()), tmp_path, work=PoisonedRun(176, 184))
    for name, other in others.items():
        replayer = open_replayer(other.run_dir / "failures/step-23", device="cpu", precision=None)
        result = replayer.run()
        assert agreement(result, replayer.dump, replayer.precision), (name, result)
        assert math.isfinite(result.loss)


@pytest.mark.slow
def test_moments_in_bf16_are_those_of_one_process_and_go_on_elsewhere(data: Path, tmp_path: Path) -> None:
    """To what the last bits of gradients, which decide how moments are rounded, leave alike."""
    bf16 = (LITTLE_HELD_OUT, "optimizer.state_dtype=bf16", "optimizer.lr=1e-2", "schedule_steps=6")
    config = make_config(data, tmp_path / "alone", *SIZES, *bf16)
    run(config)
    expected = [record["loss"] for record in records_of(config.run_dir, "train")]
    firsts = on_ranks(dataclasses.replace(config, num_steps=3), tmp_path)
    train_on_ranks(2, list(firsts.values()), tmp_path)
    names = list(LAYOUTS)
    seconds = [
        dataclasses.replace(firsts[name], num_steps=6, layout=LAYOUTS[names[(number + 1) % len(names)]])
        for number, name in enumerate(names)
    ]
    train_on_ranks(2, seconds, tmp_path)
    for second in seconds:
        losses = [record["loss"] for record in records_of(second.run_dir, "train")]
        assert losses == pytest.approx(expected, rel=1e-4), second.run_dir.name
        moments = TensorGroup(checkpoint_path(second.run_dir / "checkpoints", 6), "optimizer")
        assert moments["norm.weight/exp_avg_sq"].dtype == torch.bfloat16
