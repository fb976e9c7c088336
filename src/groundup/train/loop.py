"""The training loop. There is one; it has no hooks and is meant to be read, and edited."""

import functools
import math
from collections.abc import Iterator
from typing import Protocol

import torch

from groundup.core.live_line import LiveLine
from groundup.core.log import logger
from groundup.launch.heartbeat import HeartbeatWriter
from groundup.models.count import training_flops_per_token
from groundup.parallel.device import peak_flops, peak_memory_bytes
from groundup.parallel.fsdp import without_gathering
from groundup.tokens.sampling.dataset import Samples
from groundup.train.config import TrainConfig
from groundup.train.data_loader import read_batch
from groundup.train.live import LiveStatus
from groundup.train.metrics import Interval, Metrics, Stopwatch
from groundup.train.muon import Muon
from groundup.train.prefetch import Prefetch
from groundup.train.rng import RngStates
from groundup.train.setup import Run, build_run
from groundup.train.signals import Interrupted, StopSignals
from groundup.train.stability import oom
from groundup.train.stability.nan_debug import explained
from groundup.train.stability.spike_guard import RollbackGuard
from groundup.train.stability.spike_handling import handle_spike
from groundup.train.step import NotFinite, StepResult, train_step
from groundup.train.threads import Threads, counts_to_try


class Evaluation(Protocol):
    """What the loop reports of an evaluation."""

    @property
    def loss(self) -> float:
        """Nats a token."""
        ...

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        ...

    @property
    def bits_per_byte(self) -> float:
        """Loss in bits over the bytes of the text."""
        ...

    @property
    def num_tokens(self) -> int:
        """Predicted tokens."""
        ...


class Evaluate(Protocol):
    """Measures the model on a dataset; ``num_batches`` 0 means all of it."""

    def __call__(self, run: Run, dataset: Samples, num_batches: int) -> Evaluation:
        """Leaves the model as it was."""
        ...


class Complete(Protocol):
    """Completes ``config.sample.prompt`` with the model as it is."""

    def __call__(self, run: Run) -> str:
        """Leaves the model as it was."""
        ...


def train(
    config: TrainConfig, *, evaluate: Evaluate, complete: Complete, heartbeat: HeartbeatWriter | None = None
) -> dict[str, Evaluation]:
    """Trains from scratch, or on from the run folder's newest checkpoint, to ``config.num_steps``.

    Returns:
        The evaluation of each held-out split that has a sample, at the end; none where there are no
        validations.

    Raises:
        Interrupted: By Ctrl-C or SIGTERM, after saving.
        GroundupError: See ``build_run`` and ``train_step``.
    """
    run = build_run(config, heartbeat)
    metrics = Metrics(
        config.run_dir,
        from_step=run.state.step,
        tensorboard=config.log.tensorboard,
        mute=not run.mesh.is_first,
    )
    report = _Report(run, metrics)
    with LiveLine(report.live.text):
        return _train(run, metrics, report, evaluate, complete)


def _train(
    run: Run, metrics: Metrics, report: "_Report", evaluate: Evaluate, complete: Complete
) -> dict[str, Evaluation]:
    config, state, mesh = run.config, run.state, run.mesh
    batches = Prefetch(
        functools.partial(
            read_batch,
            run.training,
            vocab_size=config.model.vocab_size,
            mask_documents=config.data.mask_documents,
        ),
        _shares(run),
        device=run.device,
    )

    threads = Threads(counts_to_try(config, mesh, present=torch.get_num_threads()))
    with StopSignals(config.run_dir) as interruption, batches, run.writer, threads:
        if isinstance(config.guard, RollbackGuard) and state.step == 0:
            run.save(wait=True, replaces=True)  # there must be something to go back to
        while state.step < config.num_steps:
            run.heartbeat.record(state.step + 1, "reading data")
            batch = batches.next_batch()
            run.heartbeat.record(state.step + 1, "training")
            random = RngStates.now()
            try:
                with threads.step(len(batch.tokens_BT)):
                    result = train_step(state, batch, config, run.precision, mesh)
            except NotFinite as error:
                raise explained(run, batch, error, random) from error
            except torch.OutOfMemoryError as error:
                raise oom.explained(error, state, config) from error
            if not result.outlier:
                report.add(result)
            elif handle_spike(run, metrics, result, random):
                report.begin()
                batches.jump(_shares(run))
                continue

            last = state.step == config.num_steps
            if last or state.step % config.log.interval == 0:
                report.flush()
            with report.stopwatch:
                with without_gathering(state.parts):
                    if _due(state.step, config.validation.interval) and run.splits.validation and not last:
                        _validate(run, metrics, evaluate, "validation", config.validation.num_batches)
                    if _due(state.step, config.sample.interval):
                        run.heartbeat.record(state.step, "sampling", is_long=True)
                        text = complete(run)
                        logger.info("step %d: %s%s", state.step, config.sample.prompt, text)
                        metrics.record("sample", state.step, text=config.sample.prompt + text)
                stopping = mesh.any(interruption.requested or run.writer.has_failed)
                if last or stopping or _due(state.step, config.checkpoint.interval):
                    run.heartbeat.record(state.step, "saving", is_long=True)
                    run.save(wait=last or stopping)
            if stopping and not last:
                raise Interrupted(state.step, interruption.number)

    with threads:
        return _validate_at_the_end(run, metrics, evaluate)


def _shares(run: Run) -> Iterator[tuple[int, int]]:
    """The first sample and the number of samples of this rank's share of each step that is left."""
    state, mesh = run.state, run.mesh
    for begin, size in run.config.batch_sizes.steps(state.samples, run.config.num_steps - state.step):
        yield begin + mesh.dp_rank * (size // mesh.dp), size // mesh.dp


class _Report:
    """Gathers steps into log lines."""

    def __init__(self, run: Run, metrics: Metrics) -> None:
        self.run = run
        self.metrics = metrics
        self.flops_per_token = training_flops_per_token(run.config.model, run.config.data.sequence_length)
        self.peak = peak_flops(run.device, run.precision.dtype)
        self.live = LiveStatus(run)
        self.begin()
        self.check_first_loss = run.state.step == 0 and run.config.start.path is None
        logger.info(
            "%.4g GFLOP a token (6 x weights of matrix products + 6 x layers x width x sequence length,"
            " attention counted as causal)",
            self.flops_per_token / 1e9,
        )

    def begin(self, loss: float | None = None) -> None:
        """Begins a line from the state as it is; ``loss`` is that of the line before."""
        self.stopwatch = Stopwatch()
        self.live.begin(self.stopwatch, loss)
        self.results: list[StepResult] = []
        self.tokens_before = self.run.state.tokens

    def add(self, result: StepResult) -> None:
        """Takes one step's result."""
        self.results.append(result)
        if self.check_first_loss:
            self.check_first_loss = False
            expected = math.log(self.run.config.model.vocab_size)
            note = (
                "as it should be"
                if abs(float(result.loss) - expected) < 0.5
                else "unexpected: check init_std"
            )
            logger.info("loss at initialisation %.3f, ln(vocabulary) %.3f: %s", result.loss, expected, note)

    def flush(self) -> None:
        """Writes the line and the record of the steps since the last one."""
        if not self.results:
            return
        state, config = self.run.state, self.run.config
        loss = float(torch.stack([result.loss for result in self.results]).mean())  # waits for the device
        seconds = self.stopwatch.seconds()
        tokens_per_second = (state.tokens - self.tokens_before) / seconds
        flops_per_second = tokens_per_second * self.flops_per_token
        Interval(
            step=state.step,
            num_steps=config.num_steps,
            loss=loss,
            grad_norm=self.results[-1].grad_norm,
            lr=self.results[-1].lr,
            adamw_lr=self._adamw_lr(),
            tokens_per_second=tokens_per_second,
            flops_per_second=flops_per_second,
            mfu=flops_per_second / self.peak if self.peak else 0.0,
            loss_scale=state.scaler.scale if state.scaler else 1.0,
            skipped_steps=state.skipped_steps,
            outliers=len(state.guard.outliers) if state.guard else 0,
            batch_size=self.results[-1].num_samples,
            samples=state.samples,
            memory_bytes=peak_memory_bytes(self.run.device),
            epoch=state.samples / self.run.training.num_samples,
            tokens=state.tokens,
            eta_seconds=self._samples_left() * seconds / sum(result.num_samples for result in self.results),
        ).report(self.metrics)
        self.begin(loss)

    def _adamw_lr(self) -> float | None:
        """The other rate of Muon, which follows the same schedule."""
        optimizer = self.run.config.optimizer
        if not isinstance(optimizer, Muon):
            return None
        return self.results[-1].lr * optimizer.adamw.lr / optimizer.lr

    def _samples_left(self) -> int:
        state, config = self.run.state, self.run.config
        end = config.batch_sizes.after(config.num_steps - state.step, begin=state.samples)
        return end - state.samples


def _validate(
    run: Run, metrics: Metrics, evaluate: Evaluate, name: str, num_batches: int
) -> dict[str, Evaluation]:
    """Evaluates a split, with the average of the weights too where there is one."""
    run.heartbeat.record(run.state.step, "validating", is_long=True)
    with without_gathering(run.state.parts):
        found = {name: evaluate(run, getattr(run.splits, name), num_batches)}
    if run.state.average:
        with run.state.average.in_place_of_weights(), without_gathering(run.state.parts):
            found[f"{name}_ema"] = evaluate(run, getattr(run.splits, name), num_batches)
    for key, evaluation in found.items():
        logger.info(
            "step %d: %s loss %.4f | perplexity %.2f | %.4f bits per byte | %d tokens",
            run.state.step,
            key,
            evaluation.loss,
            evaluation.perplexity,
            evaluation.bits_per_byte,
            evaluation.num_tokens,
        )
        names = ("loss", "perplexity", "bits_per_byte", "num_tokens")
        metrics.record(key, run.state.step, **{value: getattr(evaluation, value) for value in names})
    return found


def _validate_at_the_end(run: Run, metrics: Metrics, evaluate: Evaluate) -> dict[str, Evaluation]:
    """Evaluates what is held out, as the validations before did; nothing where there were to be none."""
    found: dict[str, Evaluation] = {}
    for name in ("validation", "test") if run.config.validation.interval else ():
        if getattr(run.splits, name):
            found |= _validate(run, metrics, evaluate, name, run.config.validation.num_batches)
    return found


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0
