"""What a run reports while it trains: one log line an interval, and a live line on a terminal."""

import dataclasses
import datetime
import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from groundup.core.log import logger
from groundup.core.progress import human_count, human_seconds
from groundup.models.count import training_flops_per_token
from groundup.parallel.device import peak_flops, peak_memory_bytes
from groundup.train import megatron_lines
from groundup.train.metrics import Metrics
from groundup.train.muon import Muon
from groundup.train.setup import Run
from groundup.train.step import StepResult, lr_ratio_of_next


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


class Report:
    """Gathers steps into log lines and records, and checks the first loss."""

    def __init__(self, run: Run, metrics: Metrics) -> None:
        self.run = run
        self.metrics = metrics
        self.flops_per_token = training_flops_per_token(run.config.model, run.config.data.sequence_length)
        self.peak = peak_flops(run.precision)
        self.live = LiveStatus(run)
        self.memory_is_told = False
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
            is_near = abs(float(result.loss) - expected) < 0.5
            note = "as it should be" if is_near else "unexpected: check init_std"
            logger.info("loss at initialisation %.3f, ln(vocabulary) %.3f: %s", result.loss, expected, note)

    def flush(self) -> None:
        """Logs and records the interval since the last call; nothing where it has no step."""
        if not self.results:
            return
        values = self._values()
        if self.run.config.log.style == "groundup":
            figures = self.run.learning.objective.figures
            logger.info("%s", _line(self.run.state.step, self.run.config.num_steps, values, figures))
        elif self.run.mesh.is_first:
            self._write_megatron_lines(values)
        self.metrics.record("train", self.run.state.step, **values)
        self.begin(values["loss"])

    def save(self, *, wait: bool) -> None:
        """Saves a checkpoint; see ``Run.save``."""
        config, step = self.run.config, self.run.state.step
        tells = config.log.style != "groundup" and self.run.mesh.is_first
        if tells:
            megatron_lines.write_line(megatron_lines.saving_line(step, self.run.checkpoints_dir))
        self.run.save(wait=wait)
        if tells and (wait or not config.checkpoint.asynchronous):
            megatron_lines.write_line(megatron_lines.saved_line(step, self.run.checkpoints_dir))

    def _write_megatron_lines(self, values: dict[str, Any]) -> None:
        run, config, state = self.run, self.run.config, self.run.state
        count, style = len(self.results), config.log.style
        losses = [result.loss for result in self.results if not result.skipped]
        lr = values["lr"]
        if config.schedule_unit == "samples":
            lr = config.optimizer.lr * lr_ratio_of_next(state, config)
        interval = megatron_lines.Interval(
            iteration=state.step,
            num_iterations=config.num_steps,
            samples=state.samples,
            seconds=self.stopwatch.seconds() / count,
            lr=lr,
            batch_size=values["batch_size"],
            loss=float(torch.stack(losses).mean()) if losses else None,
            loss_scale=values["loss_scale"],
            grad_norm=values["grad_norm"],
            skipped=count - len(losses),
            nan=sum(result.skipped and not math.isfinite(result.loss) for result in self.results),
        )
        now = datetime.datetime.now(tz=None)
        megatron_lines.write_line(megatron_lines.training_line(style, interval, now))
        if losses and not self.memory_is_told:
            self.memory_is_told = True
            megatron_lines.write_line(megatron_lines.memory_line(style, state.step, run.device))
        if seconds := state.phases.take():
            megatron_lines.write_line(megatron_lines.phases_line(seconds, count))

    def _values(self) -> dict[str, Any]:
        """Returns the figures of the interval, by their names in ``metrics.jsonl``."""
        loss = float(torch.stack([result.loss for result in self.results]).mean())  # waits for the device
        state, last, seconds = self.run.state, self.results[-1], self.stopwatch.seconds()
        tokens_per_second = (state.tokens - self.tokens_before) / seconds
        flops_per_second = tokens_per_second * self.flops_per_token
        values: dict[str, Any] = {"loss": loss, "grad_norm": last.grad_norm, "lr": last.lr}
        optimizer = self.run.config.optimizer
        if isinstance(optimizer, Muon):  # whose AdamW follows the same schedule
            values["adamw_lr"] = last.lr * optimizer.adamw.lr / optimizer.lr
        values |= {name: float(value) for name, value in self._figures().items()}
        return values | {
            "tokens_per_second": tokens_per_second,
            "flops_per_second": flops_per_second,
            "mfu": flops_per_second / self.peak if self.peak else 0.0,  # 0: the peak is not known
            "loss_scale": state.scaler.scale if state.scaler else 1.0,
            "skipped_steps": state.skipped_steps,
            "outliers": len(state.spike_guard.outliers) if state.spike_guard else 0,
            "batch_size": last.num_samples,
            "samples": state.samples,
            "memory_bytes": peak_memory_bytes(self.run.device),
            "epoch": state.samples / self.run.data.train.num_samples,
            "tokens": state.tokens,
            "eta_seconds": _samples_left(self.run)
            * seconds
            / sum(result.num_samples for result in self.results),
        }

    def _figures(self) -> dict[str, torch.Tensor]:
        """Returns the means of the objective's figures over the interval."""
        names = self.run.learning.objective.figures
        return {name: torch.stack([one.figures[name] for one in self.results]).mean() for name in names}


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
            left = _samples_left(self._run) * config.data.sequence_length / self._tokens_per_second
            parts += [f"{human_count(self._tokens_per_second)} tokens/s", f"ETA {human_seconds(left)}"]
        return " | ".join(filter(None, parts))


def _samples_left(run: Run) -> int:
    state, config = run.state, run.config
    return config.batch_sizes.after(config.num_steps - state.step, begin=state.samples) - state.samples


def _line(step: int, num_steps: int, values: dict[str, Any], figures: Sequence[str] = ()) -> str:
    adamw = f" (adamw {values['adamw_lr']:.3e})" if "adamw_lr" in values else ""
    parts = [
        f"step {step:>{len(str(num_steps))}}/{num_steps}",
        f"loss {values['loss']:.4f}",
        *(f"{name.replace('_', ' ')} {values[name]:.4g}" for name in figures),
        f"grad norm {values['grad_norm']:.3f}",
        f"lr {values['lr']:.3e}{adamw}",
        f"{human_count(values['tokens_per_second'])} tokens/s",
        f"{values['flops_per_second'] / 1e12:.3g} TFLOP/s",
    ]
    if values["mfu"]:
        parts.append(f"MFU {values['mfu']:.1%}")
    if values["loss_scale"] != 1:
        parts.append(f"loss scale {values['loss_scale']:g}")
    if values["skipped_steps"]:
        parts.append(f"skipped {values['skipped_steps']}")
    if values["outliers"]:
        parts.append(f"outliers {values['outliers']}")
    parts += [f"{values['memory_bytes'] / 1e9:.2f} GB", f"epoch {values['epoch']:.2f}"]
    return " | ".join([*parts, f"ETA {human_seconds(values['eta_seconds'])}"])
