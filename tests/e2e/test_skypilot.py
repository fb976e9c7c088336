"""The script of deploy/skypilot/train.yaml, on a machine that is taken away, with a folder for a bucket."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from groundup.core.config import to_yaml
from tests.forked import programs
from tests.guides import ROOT
from tests.parallel.test_restarts import curve
from tests.runs import make_config, make_data, run

pytestmark = pytest.mark.exhaustive
TASK = yaml.safe_load((ROOT / "deploy/skypilot/train.yaml").read_text())


def launch(home: Path, config, data: Path, store: Path) -> subprocess.Popen:
    """A new machine on which SkyPilot starts the task."""
    home.mkdir()
    (home / "run.yaml").write_text(to_yaml(config))
    environment = {
        **os.environ,
        "PATH": f"{programs()}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "STORE": f"file://{store}",
        "TOKENS": f"file://{data}",
        "PUSH_SECONDS": "0.2",
    }
    with (home / "log").open("w") as log:
        words = ["bash", "-c", TASK["run"]]
        return subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)


def test_a_machine_that_is_taken_away_loses_nothing(tmp_path):
    data = make_data(tmp_path)
    config = make_config(data, tmp_path / "undisturbed", "num_steps=400", "checkpoint.interval=20")
    run(config)
    store = tmp_path / "bucket"
    first = launch(tmp_path / "first", config, data, store)
    while not list(store.rglob("COMPLETE")):
        assert first.poll() is None, (tmp_path / "first/log").read_text()
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()

    second = launch(tmp_path / "second", config, data, store)
    assert second.wait(timeout=280) == 0, (tmp_path / "second/log").read_text()
    losses = curve(tmp_path / "second/run")
    assert min(losses) > 20  # the steps before were not made again
    undisturbed = curve(config.run_dir)
    assert losses == {step: undisturbed[step] for step in losses}
    assert max(losses) == 400
    assert any("400" in str(path) for path in store.rglob("COMPLETE"))


def test_a_store_that_cannot_be_read_ends_the_task(tmp_path):
    data = make_data(tmp_path)
    config = make_config(data, tmp_path / "run")
    bucket = tmp_path / "bucket"
    bucket.write_text("no folder")
    task = launch(tmp_path / "home", config, data, bucket)
    assert task.wait(timeout=280) != 0, (tmp_path / "home/log").read_text()
    assert not list((tmp_path / "home/run").rglob("metrics.jsonl"))
