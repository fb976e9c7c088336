"""Weights & Biases and MLflow get what ``metrics.jsonl`` gets; no training stops for them."""

import json
import logging
import struct
import sys
import threading
import time

import orjson
import pytest

from groundup.cli.train import run_training
from groundup.train import trackers
from groundup.train.metrics import Metrics
from groundup.train.signals import Interrupted
from groundup.train.trackers import TRACKERS, TrackedRun, Wandb, figures_of, tracked_runs
from tests.runs import make_config, make_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def mlflow_client(tmp_path, monkeypatch):
    """A client of a store of files, which the run finds by MLflow's own variables."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    return pytest.importorskip("mlflow.tracking").MlflowClient()


def records_of(run_dir):
    return [orjson.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().splitlines()]


def expected(records):
    """Figure -> its values by step, as they were written down."""
    found = {}
    for record in records:
        values = {name: value for name, value in record.items() if name not in ("kind", "step")}
        for name, value in figures_of(record["kind"], values).items():
            found.setdefault(name, {})[record["step"]] = value
    return found


def wandb_records(path):
    """The records of what W&B writes offline: LevelDB's log of protocol buffers, behind seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    written, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(written):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", written, at + 4)
        whole += written[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole one, or the last part of one
            yield Record.FromString(whole)
            whole = b""


def test_mlflow_has_what_was_recorded_and_goes_on_after_a_stop(data, tmp_path, mlflow_client):
    settings = ("log.mlflow=true", "log.project=cats", "validation.interval=2", "validation.num_batches=1")
    run_training(make_config(data, tmp_path / "run", *settings, "num_steps=3"))
    run_training(make_config(data, tmp_path / "run", *settings, "schedule_steps=6"))
    experiment = mlflow_client.get_experiment_by_name("cats").experiment_id
    (run,) = mlflow_client.search_runs([experiment])
    assert run.info.run_id == (tmp_path / "run" / TRACKERS / "mlflow").read_text()
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    assert run.data.params["model.num_layers"] == "2"
    figures = expected(records_of(tmp_path / "run"))
    assert {"train/loss", "validation/bits_per_byte"} <= figures.keys() <= set(run.data.metrics)
    for name in ("train/loss", "train/lr", "validation/loss"):
        history = mlflow_client.get_metric_history(run.info.run_id, name)
        assert {one.step: one.value for one in history} == figures[name]
    assert list(figures["train/loss"]) == [1, 2, 3, 4, 5, 6]


def test_a_stop_and_a_failure_are_told_apart(data, tmp_path, mlflow_client):
    for error, status in ((Interrupted(1, 2), "KILLED"), (ValueError("lost"), "FAILED")):
        run_dir = tmp_path / status
        run_dir.mkdir()
        config = make_config(data, run_dir, "log.mlflow=true", f"log.run_name=the {status}")
        with pytest.raises(type(error)), Metrics(
            run_dir, from_step=0, tensorboard=None, trackers=tracked_runs(config)
        ) as metrics:  # fmt: skip
            metrics.record("train", 1, loss=2.5)
            raise error
        found = mlflow_client.get_run((run_dir / TRACKERS / "mlflow").read_text())
        assert (found.info.status, found.info.run_name) == (status, f"the {status}")


def test_wandb_has_what_was_recorded_and_goes_on_after_a_stop(data, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    config = make_config(data, run_dir, "log.wandb=true", "log.project=cats")
    folders = set()
    for steps in ((1, 2), (3,)):
        with Metrics(
            run_dir, from_step=steps[0] - 1, tensorboard=None, trackers=tracked_runs(config)
        ) as metrics:
            for step in steps:
                metrics.record("train", step, loss=step / 8, text="no figure")
            metrics.record("validation", steps[-1], loss=1.5, perplexity=float("inf"))
        (folder,) = set((tmp_path / "wandb").glob("offline-run-*")) - folders
        folders.add(folder)
        while time.strftime("%Y%m%d_%H%M%S") in folder.name:  # two of a second would share it
            time.sleep(0.05)

    rows, runs = [], []
    for path in sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.parent.name):
        for record in wandb_records(path):
            if record.HasField("history"):
                items = record.history.item
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
                rows.append({name: value for name, value in row.items() if not name.startswith("_")})
            if record.HasField("run"):
                runs.append((record.run.project, record.run.display_name, record.run.run_id))
    assert set(runs) == {("cats", "run", (run_dir / TRACKERS / "wandb").read_text())}
    assert rows[0] == {"step": 1, "train/loss": 0.125}
    assert [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row] == [
        (record["step"], record["loss"]) for record in records_of(run_dir) if record["kind"] == "train"
    ]
    held_out = [row for row in rows if "validation/loss" in row]
    assert [row["step"] for row in held_out] == [2, 3] and held_out[0]["validation/loss"] == 1.5


class Broken(Wandb):
    """Fails at a part of its work."""

    def __init__(self, part):
        self.part = part

    def start(self, config, known):
        if self.part == "start":
            raise OSError("no network")
        return "one"

    def log(self, step, figures):
        if self.part == "log":
            raise OSError("no network")

    def finish(self, error):
        if self.part == "finish":
            raise OSError("no network")


@pytest.mark.parametrize("part", ["start", "log", "finish"])
def test_a_tracker_that_fails_is_told_of_once_and_stops_nothing(data, tmp_path, monkeypatch, caplog, part):
    monkeypatch.setattr(trackers, "Wandb", lambda: Broken(part))
    with caplog.at_level(logging.WARNING, logger="groundup"):
        run_training(make_config(data, tmp_path / "run", "log.wandb=true"))
    assert [record["step"] for record in records_of(tmp_path / "run") if record["kind"] == "train"] == [
        *range(1, 7)
    ]
    warnings = [record.message for record in caplog.records if "wandb" in record.message]
    assert warnings == ["wandb has failed, and is told no more of this run: no network"]


def test_a_server_that_does_not_answer_holds_nothing_up(data, tmp_path, monkeypatch, caplog):
    released = threading.Event()

    class Deaf(Broken):
        def start(self, config, known):
            released.wait()
            return super().start(config, known)

    monkeypatch.setattr(trackers, "_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(trackers, "Wandb", lambda: Deaf("start"))
    run_training(make_config(data, tmp_path / "run", "log.wandb=true"))
    released.set()
    assert len([record for record in records_of(tmp_path / "run") if record["kind"] == "train"]) == 6
    assert "not everything was sent" in caplog.text


def test_a_slow_tracker_holds_nothing_up_for_long(data, tmp_path, monkeypatch, caplog):
    released = threading.Event()

    class Slow(Broken):
        def log(self, step, figures):
            released.wait()

    monkeypatch.setattr(trackers, "_PATIENCE_SECONDS", 0.05)
    tracked = TrackedRun(Slow(""), make_config(data, tmp_path))
    tracked.record("train", 1, {"loss": 1.0})
    tracked.close(None)
    released.set()
    assert "not everything was sent" in caplog.text


def test_a_missing_one_is_told_before_training(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError) as told:
        tracked_runs(make_config(data, tmp_path, "log.wandb=true"))
    assert told.value.name == "wandb"
