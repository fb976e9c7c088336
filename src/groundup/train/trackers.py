"""Weights & Biases and MLflow: the records of a run go to them too, by their own clients and settings.

Whatever a tracker does, the training goes on: it is told of records in a thread of its own, and what it
raises ends it with one warning.
"""

import importlib
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from groundup.core.config import to_dict
from groundup.core.config_sources import leaves
from groundup.core.files import atomic_write
from groundup.core.log import logger
from groundup.train.config import TrainConfig
from groundup.train.signals import Interrupted

TRACKERS = "trackers"
"""Folder with the id that each tracker has for the run, so that it goes on there after a stop."""
_PATIENCE_SECONDS = 60.0
_LONGEST_PARAMETER = 500  # of characters: MLflow's own limit until 2.7


class Tracker(Protocol):
    """A service that shows runs."""

    name: str

    def start(self, config: TrainConfig, known: str) -> str:
        """Begins a run, or goes on with the known one; returns what it is known by."""
        ...

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Sends the figures of a record."""
        ...

    def finish(self, error: BaseException | None) -> None:
        """Ends the run, and returns once all is sent."""
        ...


class Wandb:
    """Weights & Biases; WANDB_MODE=offline and its other variables have their effect."""

    name = "wandb"

    def start(self, config: TrainConfig, known: str) -> str:
        """See ``Tracker.start``."""
        wandb = importlib.import_module(self.name)
        self._run = wandb.init(
            project=config.log.project or None,
            name=_run_name(config),
            id=known or None,
            resume="allow",
            config=dict(_settings(config)),
            allow_val_change=True,  # what a run goes on with may differ, as num_steps
            settings=wandb.Settings(console="off"),  # our lines are on the terminal and in train.log
        )
        # Its own steps only grow, but a run that goes on from a checkpoint makes some steps anew.
        self._run.define_metric("*", step_metric="step")
        return str(self._run.id)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """See ``Tracker.log``."""
        self._run.log({"step": step, **figures})

    def finish(self, error: BaseException | None) -> None:
        """See ``Tracker.finish``."""
        self._run.finish(exit_code=int(error is not None))


class Mlflow:
    """MLflow; MLFLOW_TRACKING_URI and its other variables have their effect."""

    name = "mlflow"

    def start(self, config: TrainConfig, known: str) -> str:
        """See ``Tracker.start``."""
        importlib.import_module(self.name)
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient()
        if known:
            self._id = known
            self._client.update_run(known, status="RUNNING")
            return known
        experiment = "0"  # the one that is always there
        if config.log.project:
            found = self._client.get_experiment_by_name(config.log.project)
            experiment = found.experiment_id if found else self._client.create_experiment(config.log.project)
        run = self._client.create_run(experiment, run_name=_run_name(config))
        self._id = run.info.run_id
        parameters = [Param(key, str(value)[:_LONGEST_PARAMETER]) for key, value in _settings(config)]
        for first in range(0, len(parameters), 100):  # as many as it takes at once
            self._client.log_batch(self._id, params=parameters[first : first + 100])
        self._client.log_batch(self._id, tags=[RunTag("run_dir", str(config.run_dir.absolute()))])
        return str(self._id)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """See ``Tracker.log``."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in figures.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, error: BaseException | None) -> None:
        """See ``Tracker.finish``."""
        status = "FINISHED" if error is None else "KILLED" if isinstance(error, Interrupted) else "FAILED"
        self._client.set_terminated(self._id, status)


class TrackedRun:
    """Sends the records of a run to a tracker, in order, without holding up the training."""

    def __init__(self, tracker: Tracker, config: TrainConfig) -> None:
        importlib.import_module(tracker.name)  # a missing one is told before anything is trained
        self._tracker, self._config = tracker, config
        self._records: queue.SimpleQueue[tuple[int, Mapping[str, float]] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._send, name=tracker.name, daemon=True)
        self._thread.start()
        self._begun.wait(_PATIENCE_SECONDS / 2)  # what it says or asks then stands before the first step

    def record(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Sends the figures of a record, named as in TensorBoard: kind/figure."""
        if self._thread.is_alive():
            self._records.put((step, figures_of(kind, values)))

    def close(self, error: BaseException | None) -> None:
        """Ends the run there; waits a while for what is still to be sent."""
        self._error = error
        self._records.put(None)
        self._thread.join(_PATIENCE_SECONDS)
        if self._thread.is_alive():
            self._warn(TimeoutError(f"not everything was sent within {_PATIENCE_SECONDS:.0f} s"))

    def _send(self) -> None:
        try:
            self._begin()
            while (record := self._records.get()) is not None:
                step, figures = record
                if figures:
                    self._tracker.log(step, figures)
            self._tracker.finish(self._error)
        except Exception as error:  # libraries and networks raise what they like
            self._warn(error)
        finally:
            self._begun.set()

    def _begin(self) -> None:
        path = self._config.run_dir / TRACKERS / self._tracker.name
        begun = self._tracker.start(self._config, path.read_text() if path.is_file() else "")
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as file:
            file.write(begun.encode())
        self._begun.set()

    def _warn(self, error: BaseException) -> None:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        logger.warning("%s has failed, and is told no more of this run: %s", self._tracker.name, first)


def figures_of(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by the names that trackers have for them."""
    return {f"{kind}/{name}": value for name, value in values.items() if isinstance(value, int | float)}


def tracked_runs(config: TrainConfig) -> Sequence[TrackedRun]:
    """Begins, or goes on with, the run of each tracker that the config asks for.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    asked: list[Tracker] = [
        *([Wandb()] if config.log.wandb else []),
        *([Mlflow()] if config.log.mlflow else []),
    ]
    return [TrackedRun(tracker, config) for tracker in asked]


def _run_name(config: TrainConfig) -> str:
    return config.log.run_name or config.run_dir.absolute().name


def _settings(config: TrainConfig) -> list[tuple[str, Any]]:
    return list(leaves(to_dict(config)))
