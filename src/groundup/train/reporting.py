"""What a run reports while it trains: one log line an interval, and a live line on a terminal."""

import dataclasses
import math
import time

import torch

from groundup.core.log import logger
from groundup.core.progress import human_count, human_seconds
from groundup.models.count import training_flops_per_token
from groundup.parallel.device import peak_flops, peak_memory_bytes
from groundup.train.metrics import Metrics
from groundup.train.muon import Muon
from groundup.train.setup import Run
from groundup.train.step import StepResult


@dataclasses.dataclass
class Stopwatch:
    """Measures time spent training, without validation, saving and sampling."""

    began: float = dataclasses.field(default_factory=time.perf_counter)
    paused: float = 0.0

    def seconds(self) -> float:
        """Seconds since the start without the pauses."""
        return time.perf_counter() - self.began - self.paused

    def __enter__(self) -> "Stopwatch":
        """Begins a pause."""
        self._pause_began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends a pause."""
        self.paused += time.perf_counter() - self._pause_began


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """The figures of one log line.

    Attributes:
        loss: Mean over the interval's steps.
        lr: Learning rate; with Muon that of the matrices.
        adamw_lr: Learning rate of Muon's AdamW; None without Muon.
        tokens_per_second: Trained tokens over training time.
        flops_per_second: By the formula of ``models.count``.
        mfu: Share of the device's stated peak; 0 where that is unknown.
        outliers: Loss spikes of the run so far.
        batch_size: Samples of the last step.
        samples: Position in the data after the interval.
    """

    step: int
    num_steps: int
    loss: float
    grad_norm: float
    lr: float
    adamw_lr: float | None
    tokens_per_second: float
    flops_per_second: float
    mfu: float
    loss_scale: float
    skipped_steps: int
    outliers: int
    batch_size: int
    samples: int
    memory_bytes: int
    epoch: float
    tokens: int
    eta_seconds: float

    def line(self) -> str:
        """Formats one line for the terminal."""
        parts = [
            f"step {self.step:>{len(str(self.num_steps))}}/{self.num_steps}",
            f"loss {self.loss:.4f}",
            f"grad norm {self.grad_norm:.3f}",
            f"lr {self.lr:.3e}" + (f" (adamw {self.adamw_lr:.3e})" if self.adamw_lr is not None else ""),
            f"{human_count(self.tokens_per_second)} tokens/s",
            f"{self.flops_per_second / 1e12:.3g} TFLOP/s",
        ]
        if self.mfu:
            parts.append(f"MFU {self.mfu:.1%}")
        if self.loss_scale != 1:
            parts.append(f"loss scale {self.loss_scale:g}")
        if self.skipped_steps:
            parts.append(f"skipped {self.skipped_steps}")
        if self.outliers:
            parts.append(f"outliers {self.outliers}")
        parts += [f"{self.memory_bytes / 1e9:.2f} GB", f"epoch {self.epoch:.2f}"]
        parts.append(f"ETA {human_seconds(self.eta_seconds)}")
        return " | ".join(parts)

    def report(self, metrics: Metrics) -> None:
        """Logs the line and writes the record."""
        logger.info("%s", self.line())
        values = {k: v for k, v in dataclasses.asdict(self).items() if k not in ("step", "num_steps")}
        metrics.record("train", self.step, **{k: v for k, v in values.items() if v is not None})


class LiveStatus:
    """Shows the present state of a run in under 80 columns; read by another thread than the training one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loss = ""
        self._tokens_per_second = 0.0
        self._phase = ("", 0)
        self._phase_began = time.monotonic()
        self._records_before = 0
        self.begin(Stopwatch())

    def begin(self, stopwatch: Stopwatch, loss: float | None = None) -> None:
        """Begins an interval; ``loss`` is that of the interval before."""
        self._stopwatch, self._tokens_before = stopwatch, self._run.state.tokens
        if loss is not None:
            self._loss = f"loss {loss:.4f}"

    def text(self) -> str:
        """Returns step, last loss, speed and time left; or how long a validation or a save has taken."""
        state, config, heartbeat = self._run.state, self._run.config, self._run.heartbeat.current
        if (heartbeat.phase, heartbeat.step) != self._phase:
            self._phase, self._phase_began = (heartbeat.phase, heartbeat.step), time.monotonic()
            self._records_before = heartbeat.num_records
        tokens = state.tokens - self._tokens_before
        if tokens and not heartbeat.is_long:
            self._tokens_per_second = tokens / self._stopwatch.seconds()
        parts = [f"step {state.step}/{config.num_steps} ({state.step / config.num_steps:.0%})", self._loss]
        if heartbeat.is_long:
            batches = heartbeat.num_records - self._records_before
            took = human_seconds(time.monotonic() - self._phase_began)
            parts.append(f"{heartbeat.phase} {took}" + (f", batch {batches}" if batches else ""))
        elif self._tokens_per_second and state.step < config.num_steps:
            end = config.batch_sizes.after(config.num_steps - state.step, begin=state.samples)
            left = (end - state.samples) * config.data.sequence_length / self._tokens_per_second
            parts += [f"{human_count(self._tokens_per_second)} tokens/s", f"ETA {human_seconds(left)}"]
        return " | ".join(filter(None, parts))


class Report:
    """Gathers steps into log lines, and says whether the first loss is that of an untrained model."""

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
        """Begins an interval from the state as it is; ``loss`` is that of the interval before."""
        self.stopwatch = Stopwatch()
        self.live.begin(self.stopwatch, loss)
        self.results: list[StepResult] = []
        self.tokens_before = self.run.state.tokens

    def add(self, result: StepResult) -> None:
        """Adds one step's result."""
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
        """Logs and records the interval since the last call; nothing where it has no step."""
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
            outliers=len(state.spike_guard.outliers) if state.spike_guard else 0,
            batch_size=self.results[-1].num_samples,
            samples=state.samples,
            memory_bytes=peak_memory_bytes(self.run.device),
            epoch=state.samples / self.run.training.num_samples,
            tokens=state.tokens,
            eta_seconds=self._samples_left() * seconds / sum(result.num_samples for result in self.results),
        ).report(self.metrics)
        self.begin(loss)

    def _adamw_lr(self) -> float | None:
        """Returns the learning rate of Muon's AdamW, which follows the same schedule."""
        optimizer = self.run.config.optimizer
        if not isinstance(optimizer, Muon):
            return None
        return self.results[-1].lr * optimizer.adamw.lr / optimizer.lr

    def _samples_left(self) -> int:
        state, config = self.run.state, self.run.config
        end = config.batch_sizes.after(config.num_steps - state.step, begin=state.samples)
        return end - state.samples
