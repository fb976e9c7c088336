"""Stopping a run, and what a terminal shows of it until then."""

import dataclasses
import os
import signal
import subprocess
import sys

import pytest

from groundup.__main__ import main
from groundup.cli.train import evaluate
from groundup.core.config import to_yaml
from groundup.core.log import set_up
from groundup.train.loop import _due
from groundup.train.measurements import ValidationConfig
from groundup.train.signals import Interrupted
from tests.runs import losses, make_config, make_data, run
from tests.terminal import Terminal


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def test_ctrl_c_saves_and_the_same_command_continues(data, tmp_path):
    config = make_config(data, tmp_path / "run", "sample.interval=1")

    def press_ctrl_c(run_):
        if run_.state.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return [""]

    with pytest.raises(Interrupted, match="stopped after step 2, which is saved"):
        run(config, complete=press_ctrl_c)
    assert (tmp_path / "run/checkpoints/latest").resolve().name == "step_0000002"
    assert losses(run(config)) == losses(run(make_config(data, tmp_path / "whole")))


def test_a_terminal_shows_what_goes_on_between_log_lines(data, tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    set_up()

    def evaluate_slowly(run_, dataset, num_batches):
        terminal.wait_for("validating")
        return evaluate(run_, dataset, num_batches)

    def complete_slowly(run_):
        terminal.wait_for(f"step {run_.state.step}/500000 (0%)")
        return [""]

    config = make_config(
        data, tmp_path / "run", "num_steps=500000", "sample.interval=1", "checkpoint.interval=1"
    )
    config = dataclasses.replace(config, validation=ValidationConfig(interval=2))
    monkeypatch.setattr("groundup.train.loop._due", due_until_the_fifth(_due))
    with pytest.raises(Interrupted):
        run(config, evaluate=evaluate_slowly, complete=complete_slowly)
    assert max(map(len, terminal.live_lines())) < 80
    assert not any("…" in line for line in terminal.live_lines())
    assert any("| loss" in line and "validating" in line for line in terminal.live_lines())
    assert "saved" in terminal.left()
    assert "validating" not in terminal.left()


def due_until_the_fifth(due):
    """Presses Ctrl-C in the fifth step."""

    def is_due(step, interval):
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return due(step, interval)

    return is_due


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_process_that_was_asked_to_stop_ends_as_several_do(data, tmp_path, monkeypatch, number):
    monkeypatch.setattr("groundup.cli.train.complete", lambda run_: os.kill(os.getpid(), number) or [""])
    config = make_config(data, tmp_path / "run", "sample.interval=1")
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    monkeypatch.setattr(sys, "argv", ["groundup", "train", str(tmp_path / "run.yaml")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 128 + number
    assert (tmp_path / "run/checkpoints/latest").resolve().name == "step_0000001"


_STUCK = """
import os, signal, sys, time
from pathlib import Path
from tests.runs import make_config, run

folder = Path(sys.argv[2])

def get_stuck(run_):
    if run_.state.step == 4:  # there is a checkpoint of step 3, and another is half written
        for half in (run_.checkpoints_dir / ".step_0000004.tmp", folder / ".metrics.jsonl.1.tmp"):
            half.mkdir()
            (half / "model.safetensors").touch()
        os.kill(os.getpid(), signal.SIGINT)
        print("stuck", flush=True)
        time.sleep(600)  # as a product of large matrices: no handler of Python's runs in it
    return [""]

run(make_config(Path(sys.argv[1]), folder, "sample.interval=1"), complete=get_stuck)
"""


def test_the_second_ctrl_c_ends_at_once_and_leaves_nothing_half_written(data, tmp_path):
    words = [sys.executable, "-c", _STUCK, data, tmp_path / "run"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT
    assert err == "groundup: stopped at once; the newest checkpoint is the one to go on from\n"
    assert not list((tmp_path / "run").rglob(".*.tmp"))
    assert (tmp_path / "run/checkpoints/latest").resolve().name == "step_0000003"
