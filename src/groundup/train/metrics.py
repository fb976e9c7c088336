"""What a run reports: ``metrics.jsonl`` (the truth), one log line an interval, TensorBoard on request."""

import dataclasses
import time
from pathlib import Path
from typing import IO, Any, Protocol

import orjson

from groundup.core.files import atomic_write
from groundup.core.log import logger
from groundup.core.progress import human_count, human_seconds

METRICS_FILE = "metrics.jsonl"
_CUT_SHORT = 1 << 62  # stands for the step of a record that is not whole


class Sink(Protocol):
    """Something else that receives the records."""

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Takes one value."""
        ...


class Metrics:
    """Appends records to a run's ``metrics.jsonl``; each has "kind" and "step".

    Args:
        run_dir: The run folder.
        from_step: Records of later steps are dropped: they belong to an attempt that was not saved.
        tensorboard: Whether to write TensorBoard events too.
        mute: Write nothing: another rank does.
    """

    def __init__(self, run_dir: Path, *, from_step: int, tensorboard: bool, mute: bool = False) -> None:
        self._file: IO[bytes] | None = None
        self._sinks: list[Sink] = []
        if mute:
            return
        self._run_dir = run_dir
        self._tensorboard = tensorboard
        self._file = self._open(from_step)

    def go_back(self, step: int) -> None:
        """Drops the records of later steps, which are to be made anew."""
        if self._file is not None:
            self._file.close()
            self._file = self._open(step)

    def _open(self, from_step: int) -> IO[bytes]:
        path = self._run_dir / METRICS_FILE
        if path.exists():
            kept = [line for line in path.read_bytes().splitlines() if _step_of(line) <= from_step]
            with atomic_write(path) as file:
                file.writelines(line + b"\n" for line in kept)
        if self._tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._sinks = [SummaryWriter(str(self._run_dir / "tensorboard"), purge_step=from_step + 1)]
        return path.open("ab", buffering=0)

    def record(self, kind: str, step: int, **values: Any) -> None:
        """Writes one record."""
        if self._file is None:
            return
        self._file.write(orjson.dumps({"kind": kind, "step": step, **values}) + b"\n")
        for sink in self._sinks:
            for name, value in values.items():
                if isinstance(value, int | float):
                    sink.add_scalar(f"{kind}/{name}", value, step)


@dataclasses.dataclass
class Stopwatch:
    """Time spent training, without validation, saving and sampling."""

    began: float = dataclasses.field(default_factory=time.perf_counter)
    paused: float = 0.0

    def seconds(self) -> float:
        """Seconds since the start, less the pauses."""
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
        adamw_lr: With Muon, that of all else.
        tokens_per_second: Trained tokens over training time.
        flops_per_second: By the formula of ``models.count``.
        mfu: Share of the device's stated peak; 0 where that is unknown.
        outliers: Steps that the guard found, of those that count.
        batch_size: Samples of the last step.
        samples: Position in the data after it.
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
        """One line for the terminal."""
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


def last_step(path: Path) -> int:
    """The highest step of the records in a ``metrics.jsonl``; 0 where there are none."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return max((step for step in map(_step_of, lines) if step < _CUT_SHORT), default=0)


def _step_of(line: bytes) -> int:
    try:
        return int(orjson.loads(line)["step"])
    except (orjson.JSONDecodeError, KeyError):  # the line that a kill cut short
        return _CUT_SHORT
