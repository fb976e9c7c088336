"""The memory that is planned for a step, against what PyTorch's allocator counts in one."""

import gc
import os
from pathlib import Path

import pytest
import torch

from groundup.launch.env import rank_from_env
from groundup.models.init import initialise
from groundup.parallel.device import Precision, choose_precision
from groundup.parallel.dtensor import place
from groundup.parallel.mesh import init_distributed
from groundup.plan.rank_memory import CLASSES, memory_of_ranks
from groundup.plan.run_step import step_of_run
from groundup.train.config import TrainConfig
from groundup.train.data_loader import Batch
from groundup.train.setup import empty_state
from groundup.train.step import train_step
from tests.parallel.ranks import start_ranks, train_on_ranks
from tests.runs import make_config

NATIVE = f"precision={choose_precision('auto', torch.device('cpu')).name}"
"""Products of emulated bf16 take memory of their own, and no run uses them."""
GPT2 = (
    *("model.vocab_size=2048", "model.hidden_size=128", "model.num_heads=4", "model.ffn_size=512"),
    *("model.num_layers=3", "model.max_sequence_length=256", "data.sequence_length=256"),
    *("micro_batch_size=2", "global_batch_size=2", "deterministic=false"),
)
LLAMA = (
    *("model.kind=llama", "model.max_sequence_length=256", "model.vocab_size=2048", "model.hidden_size=128"),
    *("model.num_heads=4", "model.num_kv_heads=2", "model.ffn_size=384", "model.num_layers=3"),
    *("data.sequence_length=256", "micro_batch_size=2", "global_batch_size=2", "deterministic=false"),
)


def peak(config: TrainConfig) -> int:
    """The most bytes that are allocated in the second step of a run on this rank."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        device = torch.device("cpu")
        mesh = init_distributed(config.layout, rank_from_env(), device)
        precision = Precision(config.precision, device)
        state = empty_state(config, mesh, precision)
        initialise(state.model, config.model, seed=0, place=place)
        rows = config.global_batch_size // mesh.dp
        tokens = torch.randint(config.model.vocab_size, (rows, config.data.sequence_length))
        batch = Batch(tokens_BT=tokens, targets_BT=tokens)
        train_step(state, batch, config, precision, mesh)
        gc.collect()
        with torch.profiler.record_function("second step"):
            train_step(state, batch, config, precision, mesh)
    events = profile.profiler.kineto_results.events()
    (begin,) = (event.start_ns() for event in events if event.name() == "second step")
    held = most = 0
    for when, change in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        held += change
        most = max(most, held if when >= begin else 0)
    return most


def planned(config: TrainConfig) -> list[int]:
    layout = config.layout.over(config.layout.num_ranks)
    return [one.total for one in memory_of_ranks(step_of_run(config, layout, config.precision))]


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((*GPT2, "global_batch_size=4"), marks=pytest.mark.exhaustive),
        pytest.param((*GPT2, NATIVE, "model.dropout=0.1"), marks=pytest.mark.exhaustive),
        (*GPT2, NATIVE, "recompute.mode=full", "ema.decay=0.9"),
        (*LLAMA, NATIVE, "recompute.mode=selective"),
    ],
    ids=["accumulation", "dropout", "full-average", "llama-selective"],
)
def test_a_step_takes_what_was_planned(tmp_path, overrides):
    config = make_config(tmp_path / "data", tmp_path / "run", *overrides)
    alone = start_ranks(write_peak_of, (config,), 1)  # a process's second profile errs
    while not alone.join():
        pass
    assert planned(config) == [pytest.approx(int((tmp_path / "0.txt").read_text()), rel=0.04)]


def write_peak_of(rank: int, config: TrainConfig) -> None:
    torch.set_num_threads(1)
    (config.run_dir.parent / f"{rank}.txt").write_text(str(peak(config)))


def write_peak(config: TrainConfig) -> None:
    write_peak_of(int(os.environ["RANK"]), config)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "layout",
    [
        ("layout.dp=2", "global_batch_size=8"),
        ("layout.dp=1", "layout.tp=2"),
        ("layout.dp=1", "layout.tp=2", "recompute.mode=selective"),
        ("layout.dp=1", "layout.pp=2", "global_batch_size=8"),
        ("layout.dp=1", "layout.pp=2", "global_batch_size=8", "layout.pipeline.schedule=gpipe"),
        ("layout.dp=1", "layout.cp=2"),
    ],
    ids=" ".join,
)
def test_a_step_of_two_ranks_takes_what_was_planned(tmp_path, layout):
    more_memory_than_buffers = (
        "model.num_layers=4",
        NATIVE,
        "micro_batch_size=4",
        "global_batch_size=4",
    )
    config = make_config(tmp_path / "data", tmp_path / "run", *GPT2, *more_memory_than_buffers, *layout)
    train_on_ranks(2, [config], tmp_path, write_peak)
    measured = [int((tmp_path / f"{rank}.txt").read_text()) for rank in range(2)]
    expected = planned(config)
    if len(expected) == 1:
        measured = [max(measured)]
    # The profiler misses some of what the collectives' threads free: up to a tenth more seems held.
    assert expected == [pytest.approx(one, rel=0.15) for one in measured]


def by_class(folder: Path, *overrides: str) -> dict[str, int]:
    config = make_config(folder / "data", folder / "run", *GPT2, *overrides)
    layout = config.layout.over(config.layout.num_ranks)
    (one,) = memory_of_ranks(step_of_run(config, layout, config.precision))
    assert tuple(one.by_class) == CLASSES
    return one.by_class


def test_zero_shares_what_its_stage_says(tmp_path):
    stages = [by_class(tmp_path, "layout.dp=2", f"layout.zero={n}", "global_batch_size=8") for n in range(4)]
    whole, *shared = stages
    assert [one["optimizer"] / whole["optimizer"] for one in shared] == [pytest.approx(0.5, rel=1e-3)] * 3
    assert stages[1]["gradients"] == whole["gradients"]
    assert stages[2]["gradients"] / whole["gradients"] == pytest.approx(0.5, rel=1e-3)
    assert stages[3]["weight copies"] < stages[2]["weight copies"]


def test_tensor_parallelism_divides_logits_and_weights(tmp_path):
    one, two = by_class(tmp_path), by_class(tmp_path, "layout.tp=2")
    assert two["weights"] == pytest.approx(one["weights"] / 2, rel=0.1)  # norms and positions are whole
    assert two["logits"] < one["logits"] and two["activations"] < one["activations"]
