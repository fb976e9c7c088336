"""Updates that all ranks make alike: skipped where one overflows, and Muon's of matrices that are cut."""

import dataclasses
import math
import os
from pathlib import Path

import orjson
import pytest
import torch

from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.folder import checkpoint_path
from groundup.checkpoint.native.load import TensorGroup
from groundup.parallel import device
from groundup.parallel.dtensor import local
from groundup.parallel.layout import Layout
from groundup.train import step
from groundup.train.config import TrainConfig
from tests.parallel.ranks import train_on_ranks
from tests.runs import losses, make_config, make_data, records_of, run

LAYOUTS = {"dp2-zero3": Layout(dp=2, zero=3), "tp2": Layout(tp=2), "pp2": Layout(pp=2)}
CUT = "layers.1.mlp.w1.weight"  # each layout gives rank 1 some of it that rank 0 has not


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def under_each(config: TrainConfig, folder: Path) -> dict[str, TrainConfig]:
    return {
        name: dataclasses.replace(config, run_dir=folder / name, layout=layout)
        for name, layout in LAYOUTS.items()
    }


def overflow_on_rank_1(config: TrainConfig) -> None:
    """Trains in fp16; in the second step a number of rank 1's gradients is infinite."""
    add_gradients = step.add_gradients

    def overflowing(state, *arguments, **named):
        total = add_gradients(state, *arguments, **named)
        if os.environ["RANK"] == "1" and state.step == 1:
            local(dict(state.model.named_parameters())[CUT].grad).view(-1)[0] = math.inf
        return total

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "lacks", lambda name, device: "")  # slow on a CPU, but right
        patch.setattr(step, "add_gradients", overflowing)
        run(config)


@pytest.mark.slow
def test_an_overflow_on_one_rank_skips_the_step_on_all(data: Path, tmp_path: Path) -> None:
    config = make_config(
        data,
        tmp_path / "x",
        "data.split=98,1,1",
        "num_steps=3",
        "precision=fp16",
        "loss_scale.initial=1024",
        "loss_scale.hysteresis=1",
        "checkpoint.interval=1",
        "checkpoint.keep_last=3",
    )
    configs = under_each(config, tmp_path)
    train_on_ranks(2, list(configs.values()), tmp_path, overflow_on_rank_1)
    for name, one in configs.items():
        folders = [checkpoint_path(one.run_dir / "checkpoints", number) for number in (1, 2, 3)]
        assert read_checkpoint_manifest(folders[-1]).counts.skipped_steps == 1, name
        first, second, third = (TensorGroup(folder, "model") for folder in folders)
        for key in first:
            assert torch.equal(first.read(key), second.read(key)), (name, key)
        assert not torch.equal(second.read(CUT), third.read(CUT)), name
        records = [orjson.loads(line) for line in (one.run_dir / "metrics.jsonl").open("rb")]
        assert [r["loss_scale"] for r in records if r["kind"] == "train"] == [1024, 512, 512], name


@pytest.mark.slow
def test_muon_is_the_same_under_each_layout(data: Path, tmp_path: Path) -> None:
    """But for its iterations, which are in bf16 and so round what other sums round otherwise."""
    settings = ("data.split=98,1,1", "optimizer.kind=muon", "optimizer.lr=0.01", "optimizer.adamw.lr=0.01")
    config = make_config(data, tmp_path / "alone", *settings)
    alone = losses(run(config))
    assert alone[6] < alone[1] - 0.3
    configs = under_each(config, tmp_path)
    train_on_ranks(2, list(configs.values()), tmp_path)
    for name, one in configs.items():
        assert losses(records_of(one)) == pytest.approx(alone, rel=1e-3), name
