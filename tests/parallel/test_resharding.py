"""A checkpoint of any layout is the same logical tensors, and goes on under any other."""

import dataclasses
import errno
import os
import shutil
from pathlib import Path

import pytest
import torch

from groundup.checkpoint.native import commit
from groundup.checkpoint.native.contents import read_groups
from groundup.checkpoint.native.folder import checkpoint_path, find_damage, find_newest
from groundup.checkpoint.native.load import TensorGroup
from groundup.core.errors import CheckpointError, MachineError
from groundup.models.gpt2 import GPT2Config
from groundup.models.llama import LlamaConfig
from groundup.parallel.layout import Layout
from groundup.train.config import CheckpointConfig, StartConfig, TrainConfig
from groundup.train.run_data import read_batch
from groundup.train.setup import build_run, writer_of
from groundup.train.step import train_step
from tests.parallel.ranks import train_on_ranks
from tests.runs import losses, make_config, make_data, run

SIZES = {"vocab_size": 300, "max_sequence_length": 32, "num_layers": 2, "hidden_size": 32, "num_heads": 4}
MODELS = {
    "gpt2": GPT2Config(**SIZES, ffn_size=64),
    "llama": LlamaConfig(**SIZES, ffn_size=96, num_kv_heads=1),
}
LAYOUTS = {
    "alone": Layout(),
    "dp2": Layout(dp=2),
    "dp2-zero1": Layout(dp=2, zero=1),
    "dp2-zero3": Layout(dp=2, zero=3),
    "tp2": Layout(tp=2),
    "dp2-tp2": Layout(dp=2, tp=2),
    "dp4-zero3-shard2": Layout(dp=4, zero=3, shard=2),
    "dp2-tp2-zero3": Layout(dp=2, tp=2, zero=3),
    "pp2": Layout(pp=2),
    "pp2-tp2": Layout(pp=2, tp=2),
}
SAVED, STEPS = 3, 4


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def save_again_and_step(config: TrainConfig) -> None:
    """Loads the newest checkpoint of a run, saves it to another folder, and takes one step."""
    run = build_run(config)
    assert run.state.step == SAVED
    again = dataclasses.replace(config, run_dir=config.run_dir / "again")
    dataclasses.replace(run, config=again, writer=writer_of(again, run.tokenizer, run.mesh)).save(wait=True)
    share = config.global_batch_size // run.mesh.dp
    first = run.state.samples + run.mesh.dp_rank * share
    batch = read_batch(run.data.train.samples, first, share, vocab_size=config.model.vocab_size)
    result = train_step(run.state, batch, config, run.precision, run.mesh)
    if run.mesh.is_first:
        (config.run_dir / "next_loss").write_text(repr(float(result.loss)))


def _targets(first: str, reach: int) -> list[str]:
    """The layouts that follow in the table, around its end."""
    names = list(LAYOUTS)
    return [names[(names.index(first) + step) % len(names)] for step in range(1, reach + 1)]


def save_with_a_full_disk_on_one_rank(config: TrainConfig) -> None:
    """Rank 1 cannot write step 6; every rank leaves what it was told."""
    write_safetensors = commit.write_safetensors

    def fill_up(path, tensors, **_):
        if os.environ["RANK"] == "1" and "step_0000006" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", path.name)
        return write_safetensors(path, tensors)

    commit.write_safetensors = fill_up
    try:
        run(config)
    except MachineError as error:
        (config.run_dir / f"error-{os.environ['RANK']}").write_text(str(error))
    finally:
        commit.write_safetensors = write_safetensors


@pytest.mark.slow
def test_a_rank_that_cannot_write_is_named_by_all(data: Path, tmp_path: Path) -> None:
    configs = [
        dataclasses.replace(
            make_config(data, tmp_path / str(asynchronous), "global_batch_size=8", "num_steps=9"),
            layout=Layout(dp=2, zero=3),
            checkpoint=CheckpointConfig(interval=3, asynchronous=asynchronous),
        )
        for asynchronous in (False, True)
    ]
    train_on_ranks(2, configs, tmp_path, save_with_a_full_disk_on_one_rank)
    for config in configs:
        errors = [(config.run_dir / f"error-{rank}").read_text() for rank in (0, 1)]
        assert errors[0] == errors[1]
        assert "rank 1: the checkpoint of step 6 could not be written" in errors[0]
        assert "No space left" in errors[0]
        names = sorted(path.name for path in (config.run_dir / "checkpoints").iterdir())
        assert names == ["latest", "step_0000003"]
    train_on_ranks(2, configs, tmp_path)  # with the disk mended
    for config in configs:
        assert find_newest(config.run_dir / "checkpoints")[0].name == "step_0000009"


def damage_and_look(config: TrainConfig) -> None:
    """All ranks look for the newest sound checkpoint together."""
    built = build_run(config)
    (config.run_dir / f"step-{built.mesh.rank}").write_text(str(built.state.step))


def refuse(config: TrainConfig) -> None:
    """All ranks refuse to begin over damaged checkpoints."""
    with pytest.raises(CheckpointError) as refused:
        build_run(config)
    (config.run_dir / f"error-{os.environ['RANK']}").write_text(str(refused.value))


@pytest.mark.slow
def test_all_ranks_pass_over_what_one_of_them_finds_damaged(data: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(
        make_config(data, tmp_path / "run", "global_batch_size=8"), layout=Layout(dp=2, zero=3)
    )
    train_on_ranks(2, [config], tmp_path)
    newest = checkpoint_path(config.run_dir / "checkpoints", 6)
    path = newest / "optimizer-00002-of-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    train_on_ranks(2, [config], tmp_path, damage_and_look)
    assert [(config.run_dir / f"step-{rank}").read_text() for rank in (0, 1)] == ["3", "3"]
    (checkpoint_path(newest.parent, 3) / "COMPLETE").unlink()
    train_on_ranks(2, [config], tmp_path, refuse)
    refusals = [(config.run_dir / f"error-{rank}").read_text() for rank in (0, 1)]
    assert refusals[0] == refusals[1]
    assert "step_0000006: optimizer-00002-of-00002.safetensors does not match its checksum" in refusals[0]
    assert "step_0000003: incomplete" in refusals[0]
    anew = dataclasses.replace(config, start=StartConfig(anew=True))
    train_on_ranks(2, [anew], tmp_path)
    assert find_newest(newest.parent)[0] == newest
    assert (config.run_dir / "set-aside-1/checkpoints/step_0000006").is_dir()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("model", "reach"),
    [
        ("gpt2", 1),
        pytest.param("gpt2", len(LAYOUTS), marks=pytest.mark.exhaustive),
        pytest.param("llama", len(LAYOUTS), marks=pytest.mark.exhaustive),
    ],
)
def test_every_layout_loads_what_every_other_saved(
    data: Path, tmp_path: Path, model: str, reach: int
) -> None:
    base = dataclasses.replace(
        make_config(
            data,
            tmp_path,
            "global_batch_size=8",
            "data.split=98,1,1",
            "optimizer.lr=0.01",
            f"checkpoint.interval={SAVED}",
            f"num_steps={STEPS}",
        ),
        model=MODELS[model],
    )
    whole = losses(run(dataclasses.replace(base, run_dir=tmp_path / "whole")))
    saved = {
        name: dataclasses.replace(
            base, run_dir=tmp_path / name, layout=layout, num_steps=SAVED, schedule_steps=STEPS
        )
        for name, layout in LAYOUTS.items()
    }
    _on_ranks(list(saved.values()), tmp_path, run)
    loaded = {}
    for first, config in saved.items():
        for then in _targets(first, reach):
            layout = LAYOUTS[then]
            folder = tmp_path / f"{first}-to-{then}"
            shutil.copytree(config.run_dir, folder, symlinks=True)
            loaded[first, then] = dataclasses.replace(config, run_dir=folder, layout=layout, num_steps=STEPS)
    _on_ranks(list(loaded.values()), tmp_path, save_again_and_step)
    for (first, then), config in loaded.items():
        source = checkpoint_path(saved[first].run_dir / "checkpoints", SAVED)
        _require_same_tensors(source, checkpoint_path(config.run_dir / "again/checkpoints", SAVED))
        loss = float((config.run_dir / "next_loss").read_text())
        assert loss == pytest.approx(whole[STEPS], rel=2e-5), (first, then)


def _on_ranks(configs: list[TrainConfig], folder: Path, work) -> None:
    for world_size in sorted({config.layout.num_ranks for config in configs}):
        some = [config for config in configs if config.layout.num_ranks == world_size]
        if world_size == 1:
            for config in some:
                work(config)
        else:
            train_on_ranks(world_size, some, folder, work)


def _require_same_tensors(first: Path, second: Path) -> None:
    assert find_damage(first) is find_damage(second) is None
    for name in ("model", "optimizer"):
        assert name in read_groups(second)
        one, other = TensorGroup(first, name), TensorGroup(second, name)
        assert one.keys() == other.keys()
        assert len(one) > 20
        for key in one:
            assert torch.equal(one.read(key), other.read(key)), (first, second, key)
            assert one[key].shape == other[key].shape
