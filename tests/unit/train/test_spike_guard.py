"""The spike guard: its rule, what becomes of a poisoned window, and that a resumed run decides alike."""

import dataclasses
import math
import os
import signal

import pytest
import torch

from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.folder import checkpoint_path, list_checkpoints, step_of
from groundup.checkpoint.native.load import TensorGroup
from groundup.cli.app import run as groundup
from groundup.core.errors import ConfigError, TrainingError
from groundup.train.signals import Interrupted
from groundup.train.stability.replay import Replayer, SampleResult, agreement, open_replayer
from groundup.train.stability.spike_guard import RollbackGuard, SkipGuard, SpikeGuard
from groundup.train.stability.step_dump import read_dump
from tests.poisoned import poisoned, reading, without
from tests.runs import losses, make_config, make_data, run

RULE = ("spike_guard.window=8", "spike_guard.warmup=6", "spike_guard.grad_norm_deviations=50")
BASE = ("num_steps=30", "schedule_steps=30", "optimizer.lr=1e-2", "checkpoint.interval=5", *RULE)
SKIP = (*BASE, "spike_guard.kind=skip")
ROLLBACK = (*BASE, "spike_guard.kind=rollback", "spike_guard.back=6")
POISON = (100, 104)
"""Of four samples a step: the 26th."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def weights(folder, step):
    group = TensorGroup(checkpoint_path(folder / "checkpoints", step), "model")
    return {name: group.read(name) for name in group}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def outliers(records):
    return [record for record in records if record["kind"] == "outlier"]


def a_guard(**settings):
    return SpikeGuard(SkipGuard(window=32, warmup=10, **settings))


def test_an_outlier_is_far_above_the_median_in_robust_deviations():
    guard = a_guard()
    for number in range(20):
        assert guard.reason(3.0 + 0.1 * (-1) ** number, 1.0) == ""
        guard.accept(3.0 + 0.1 * (-1) ** number, 1.0)
    # median 3.0, MAD 0.1: a standard deviation of 0.148
    assert guard.reason(3.0 + 0.85, 1.0) == ""
    assert "the loss 3.95 is 6.4 standard deviations above the median 3 of the last 20" in guard.reason(
        3.95, 1.0
    )
    assert guard.reason(0.1, 1.0) == ""  # far below is welcome
    assert "the gradient norm 1.031" in guard.reason(3.0, 1.031)  # all were alike: 0.1% of the median counts
    assert guard.reason(3.0, 1.029) == ""


def test_outliers_do_not_raise_what_they_are_judged_by():
    """By mean and standard deviation the second of two spikes would pass."""
    guard = SpikeGuard(SkipGuard(window=10, warmup=10))
    for number in range(10):
        guard.accept(3.0 + 0.01 * (number % 3), 1.0)
    for step in range(3):
        assert guard.reason(5.0, 1.0)
        guard.note(step=step, samples=0, reason="x", action="skip")
    guard.accept(3.0, 1.0)
    assert guard.reason(5.0, 1.0)


def test_nothing_is_judged_before_there_is_enough_but_what_is_not_finite():
    guard = a_guard()
    for number in range(9):
        guard.accept(1.0, 1.0)
        assert guard.reason(1e6, 1e6) == "", number
    guard.accept(1.0, 1.0)
    assert guard.reason(1e6, 1.0)
    assert a_guard().reason(math.nan, 1.0) == "the loss is nan"
    assert a_guard().reason(1.0, math.inf) == "the gradient norm is inf"


def test_too_many_in_a_row_end_the_training():
    guard = a_guard(patience=3)
    for step in (1, 2):
        guard.note(step=step, samples=0, reason="high", action="skip")
    guard.accept(1.0, 1.0)
    for step in (4, 5):
        guard.note(step=step, samples=0, reason="high", action="skip")
    with pytest.raises(TrainingError, match=r"step 6: the last 3 steps were all outliers \(high\)"):
        guard.note(step=6, samples=0, reason="high", action="skip")


def test_rollbacks_have_a_limit():
    guard = SpikeGuard(RollbackGuard(limit=1))
    guard.note(step=1, samples=0, reason="high", action="rollback")
    with pytest.raises(TrainingError, match=r"after spike_guard\.limit=1 rollbacks"):
        guard.note(step=2, samples=0, reason="high", action="rollback")


def test_state_makes_the_round_trip():
    guard = a_guard()
    for number in range(40):
        guard.accept(3.0 + number, 1.0)
    guard.note(step=41, samples=160, reason="high", action="skip")
    other = a_guard()
    other.load(guard.state())
    assert other.state() == guard.state()
    assert len(other.state()["losses"]) == 32


def test_a_poisoned_window_is_skipped_as_if_it_had_never_been(data, tmp_path, caplog):
    with reading(poisoned(*POISON)), caplog.at_level("WARNING", logger="groundup"):
        records = run(make_config(data, tmp_path / "skip", *SKIP))
        unguarded = run(make_config(data, tmp_path / "none", *BASE[:-3]))
    (outlier,) = outliers(records)
    assert (outlier["outlier_step"], outlier["samples"], outlier["action"]) == (26, 100, "skip")
    assert "step 26 is skipped: the loss" in caplog.text
    assert losses(records)[25] == losses(unguarded)[25]
    assert losses(unguarded)[26] > losses(unguarded)[25] + 1
    assert losses(records).keys() == set(range(1, 31)) - {26}
    # The run without it, one step shorter, ends with the same weights.
    with reading(without(*POISON)):
        never = run(make_config(data, tmp_path / "never", *SKIP, "num_steps=29"))
    assert outliers(never) == []
    assert equal(weights(tmp_path / "skip", 30), weights(tmp_path / "never", 29))
    assert [losses(never)[step] for step in range(26, 30)] == [
        losses(records)[step] for step in range(27, 31)
    ]


def test_a_run_that_is_resumed_around_a_skip_decides_alike(data, tmp_path):
    with reading(poisoned(*POISON)):
        whole = run(make_config(data, tmp_path / "whole", *SKIP))
        for cut in (24, 27):
            run(make_config(data, tmp_path / str(cut), *SKIP, f"num_steps={cut}"))
            resumed = run(make_config(data, tmp_path / str(cut), *SKIP))
            assert losses(resumed) == losses(whole)
            assert outliers(resumed) == outliers(whole)
            assert equal(weights(tmp_path / str(cut), 30), weights(tmp_path / "whole", 30))


def test_a_rollback_jumps_over_the_window_as_a_run_without_it_would(data, tmp_path):
    with reading(poisoned(*POISON)):
        records = run(make_config(data, tmp_path / "back", *ROLLBACK))
    (outlier,) = outliers(records)
    assert (outlier["outlier_step"], outlier["step"], outlier["action"]) == (26, 20, "rollback")
    # From step 20 on, of the data without samples 80 to 103.
    with reading(without(80, 104)):
        never = run(make_config(data, tmp_path / "never", *ROLLBACK))
    assert outliers(never) == []
    assert losses(records) == losses(never)
    assert equal(weights(tmp_path / "back", 30), weights(tmp_path / "never", 30))
    state = read_checkpoint_manifest(checkpoint_path(tmp_path / "back/checkpoints", 30)).counts
    assert state.samples == 30 * 4 + 24
    assert [(one["step"], one["action"]) for one in state.spike_guard["outliers"]] == [(26, "rollback")]


@pytest.mark.parametrize("stop_at", [23, 25], ids=["behind-the-rollback", "before-it"])
def test_a_run_that_is_stopped_around_a_rollback_decides_alike(data, tmp_path, stop_at):
    whole_config = make_config(data, tmp_path / "whole", *ROLLBACK)
    config = make_config(data, tmp_path / "cut", *ROLLBACK, "sample.interval=1")
    visits = []

    def stop(run_):
        visits.append(run_.state.step)
        gone_back = len(run_.state.spike_guard.outliers)
        if run_.state.step == stop_at and gone_back == (stop_at == 23):
            raise KeyboardInterrupt
        return [""]

    with reading(poisoned(*POISON)):
        whole = run(whole_config)
        with pytest.raises(KeyboardInterrupt):
            run(config, complete=stop)
        resumed = run(dataclasses.replace(config, sample=whole_config.sample))
    assert visits[-1] == stop_at
    assert losses(resumed) == losses(whole)
    assert outliers(resumed) == outliers(whole)
    assert equal(weights(tmp_path / "cut", 30), weights(tmp_path / "whole", 30))


@pytest.mark.parametrize(("back", "kept"), [(26, 0), (12, 10)])
def test_a_checkpoint_that_is_far_enough_back_is_kept(data, tmp_path, back, kept):
    """Even the one of the beginning; and not one that is farther than need be."""
    with reading(poisoned(*POISON)):
        records = run(make_config(data, tmp_path / "run", *ROLLBACK, f"spike_guard.back={back}"))
    assert outliers(records)[0]["step"] == kept
    steps = [step_of(folder) for folder in list_checkpoints(tmp_path / "run/checkpoints")]
    assert steps[0] == max(0, (31 - back) // 5 * 5)


def test_a_checkpoint_to_go_back_to_outlives_those_that_are_stopped_for(data, tmp_path):
    """Stopping saves; the checkpoint that is far enough back must not be what is removed for it."""
    config = make_config(data, tmp_path / "run", *ROLLBACK, "sample.interval=1", "checkpoint.keep_last=1")

    def stop(run_):
        if run_.state.step in (22, 24) and not run_.state.spike_guard.outliers:
            os.kill(os.getpid(), signal.SIGINT)
        return [""]

    with reading(poisoned(*POISON)):
        for _ in range(2):
            with pytest.raises(Interrupted):
                run(config, complete=stop)
        records = run(config)
    assert [(record["outlier_step"], record["step"]) for record in outliers(records)] == [(26, 20)]


def test_what_is_not_finite_is_skipped_too(data, tmp_path):
    def poison_and_heal(run_):
        weight = run_.state.model.norm.weight.data
        weight[0] = math.inf if run_.state.step == 3 else 1.0
        return [""]

    records = run(
        make_config(data, tmp_path / "run", *SKIP, "num_steps=6", "sample.interval=1"),
        complete=poison_and_heal,
    )
    (outlier,) = outliers(records)
    assert outlier["outlier_step"] == 4
    assert outlier["reason"].startswith("the loss is nan")
    assert sorted(losses(records)) == [1, 2, 3, 5, 6]


def test_the_dump_of_an_outlier_can_be_replayed(data, tmp_path):
    settings = (*SKIP, "spike_guard.step_dump=true", "model.dropout=0.1", "num_steps=27")
    with reading(poisoned(*POISON)):
        run(make_config(data, tmp_path / "run", *settings))
    folder = tmp_path / "run/failures/step-26"
    assert "standard deviations above" in read_dump(folder).about.facts.reason
    replayer = open_replayer(folder, device="cpu", precision=None)
    result = replayer.run()
    assert agreement(result, replayer.dump, replayer.precision) == "exactly"
    assert result.findings == []
    assert [sample.index for sample in replayer.samples()] == [100, 101, 102, 103]


@pytest.mark.parametrize(
    ("of_102", "expected"),
    [
        ((3.0, 90.0), ["the largest loss, sample 101,", "the largest gradient, sample 102,"]),
        ((9.0, 90.0), ["the worst, sample 102,"]),
        ((math.nan, math.nan), ["the worst, sample 102,"]),
    ],
)
def test_the_samples_to_look_at_are_shown(data, tmp_path, capsys, monkeypatch, of_102, expected):
    settings = (*SKIP, "spike_guard.step_dump=true", "num_steps=27")
    with reading(poisoned(*POISON)):
        run(make_config(data, tmp_path / "run", *settings))
    found = {100: (3.1, 1.0), 101: (4.0, 2.0), 102: of_102, 103: (2.9, 1.5)}
    results = [SampleResult(index=index, loss=one[0], grad_norm=one[1]) for index, one in found.items()]
    monkeypatch.setattr(Replayer, "samples", lambda self: results)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        groundup(["replay", str(tmp_path / "run/failures/step-26")])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[: line.index("holds")].rstrip() for line in lines if " holds " in line] == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("spike_guard.kind=skip", "spike_guard.warmup=200"), "warmup 200 is more than window 128"),
        (("spike_guard.kind=rollback", "data.order=megatron"), "rollback needs data.order"),
        (("spike_guard.kind=skip", "spike_guard.back=5"), "unknown key spike_guard.back"),
    ],
)
def test_a_guard_that_cannot_work_is_refused(data, tmp_path, overrides, expected):
    with pytest.raises(ConfigError, match=expected):
        make_config(data, tmp_path / "run", *overrides)
