"""The training loop. There is one; it has no hooks and is meant to be read, and edited."""

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from groundup.core.live_line import LiveLine
from groundup.core.log import quiet
from groundup.launch.heartbeat import HeartbeatWriter
from groundup.tokens.sampling.collate import Evaluation
from groundup.train.config import TrainConfig
from groundup.train.cpu import Threads, counts_to_try
from groundup.train.early_stopping import stops_early
from groundup.train.learning import PRETRAINING, Learning
from groundup.train.metrics import Metrics
from groundup.train.reporting import Report
from groundup.train.setup import Run, build_run
from groundup.train.signals import Interrupted, StopSignals
from groundup.train.stability import oom
from groundup.train.stability.nan_debug import explained
from groundup.train.stability.spike_guard import RollbackGuard
from groundup.train.stability.spike_handling import handle_spike
from groundup.train.state import RngStates
from groundup.train.step import NotFinite, train_step
from groundup.train.trackers import tracked_runs
from groundup.train.validation import (
    Complete,
    Evaluate,
    ScoreTasks,
    log_sample,
    score,
    validate,
    validate_at_the_end,
)

_FEWEST_STEPS = 3


def train(
    config: TrainConfig,
    *,
    evaluate: Evaluate,
    complete: Complete,
    score_tasks: ScoreTasks,
    learning: Learning = PRETRAINING,
    heartbeat: HeartbeatWriter | None = None,
    write_report: Callable[[], None] = lambda: None,
) -> dict[str, Evaluation]:
    """Trains to ``config.num_steps``, from scratch or from the run folder's newest checkpoint.

    Returns:
        The evaluation of each held-out split that has a sample, at the end; none where there are no
        validations.

    Raises:
        Interrupted: By Ctrl-C or SIGTERM, after saving.
        GroundupError: See ``build_run`` and ``train_step``.
    """
    run = build_run(config, heartbeat, learning)
    run.heartbeat.record(run.state.step, "starting", is_long=True)  # trackers may wait for a network
    metrics = Metrics(
        config.run_dir,
        from_step=run.state.step,
        tensorboard=_events_dir(config),
        trackers=tracked_runs(config) if run.mesh.is_first else (),
        mute=not run.mesh.is_first,
        start=run.start,
    )
    report = Report(run, metrics)
    with metrics, LiveLine(report.live.text):
        is_due = config.log.report == "at_validation" and run.mesh.is_first
        write_page = write_report if is_due else lambda: None
        return _train(run, metrics, report, evaluate, complete, score_tasks, write_page)


def _train(
    run: Run,
    metrics: Metrics,
    report: Report,
    evaluate: Evaluate,
    complete: Complete,
    score_tasks: ScoreTasks,
    write_report: Callable[[], None],
) -> dict[str, Evaluation]:
    config, state, mesh, objective = run.config, run.state, run.mesh, run.learning.objective
    batches = run.prefetch(run.shares())
    threads = Threads(counts_to_try(config, mesh, present=torch.get_num_threads()))
    with StopSignals(config.run_dir) as interruption, batches, run.writer, threads:
        if isinstance(config.spike_guard, RollbackGuard) and state.step == 0:
            run.save(wait=True, replaces=True)  # the first checkpoint to roll back to
        last = state.step >= config.num_steps or stops_early(run)
        while not last:
            run.heartbeat.record(state.step + 1, "reading data")
            with state.phases.phase("batch generator"):
                batch = batches.next_batch()
            run.heartbeat.record(state.step + 1, "training")
            batch = run.prepared(batch)
            random = RngStates.now()
            try:
                with threads.step(batch.num_samples):
                    result = train_step(state, batch, config, run.precision, mesh, objective=objective)
            except NotFinite as error:
                raise explained(run, batch, error, random) from error
            except torch.OutOfMemoryError as error:
                raise oom.explained(error, state, config, oom.gpu_memory(run.device)) from error
            if not result.outlier:
                report.add(result)
            elif handle_spike(run, metrics, result, random):
                report.begin()
                batches.jump(run.shares())
                continue
            last = state.step == config.num_steps
            if last or state.step % config.log.interval == 0:
                report.flush()
            with report.stopwatch:
                if _due(state.step, config.validation.interval) and run.data.validation and not last:
                    validate(run, metrics, evaluate, "validation")
                    write_report()
                if _due(state.step, config.eval.every) and not last:
                    score(run, metrics, score_tasks)
                last = last or stops_early(run)
                if _due(state.step, config.sample.interval):
                    log_sample(run, metrics, complete)
                stopping = mesh.any(interruption.requested or run.writer.has_failed)
                if last or stopping or _due(state.step, config.checkpoint.interval):
                    run.heartbeat.record(state.step, "saving", is_long=True)
                    report.save(wait=last or stopping)
            if stopping and not last:
                raise Interrupted(state.step, interruption.number)

    report.flush()  # of a run that stopped early
    with threads:
        if config.eval.every:
            score(run, metrics, score_tasks)
        return validate_at_the_end(run, metrics, evaluate)


def _events_dir(config: TrainConfig) -> Path | None:
    """Folder of TensorBoard's events; None for none."""
    own = config.run_dir / "tensorboard" if config.log.tensorboard else None
    return config.log.tensorboard_dir or own


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def seconds_of_step(config: TrainConfig, *, measured_seconds: float = 3.0) -> float:
    """Measures the mean seconds of a step of a run on this machine, before the run; keeps nothing.

    Args:
        config: Of the run, in one process; the run folder is not touched.
        measured_seconds: Time of the steps that count, three at least; those in which threads are chosen
            do not.

    Raises:
        GroundupError: As the run itself would.
    """
    with tempfile.TemporaryDirectory() as folder, quiet():
        run = build_run(dataclasses.replace(config, run_dir=Path(folder)))
        size = config.global_batch_size
        batches = run.prefetch((number * size, size) for number in itertools.count())
        threads = Threads(counts_to_try(config, run.mesh, present=torch.get_num_threads()))
        began, steps = time.perf_counter(), -1  # the first step is like no other
        with batches, threads:
            while steps < _FEWEST_STEPS or time.perf_counter() - began < measured_seconds:
                batch = batches.next_batch()
                with threads.step(size):
                    train_step(run.state, batch, config, run.precision, run.mesh)
                steps = 0 if threads.is_trying or steps < 0 else steps + 1
                began = time.perf_counter() if steps == 0 else began
        return (time.perf_counter() - began) / steps
