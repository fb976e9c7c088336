"""The records of a run: ``metrics.jsonl`` (the truth), and TensorBoard events and trackers on request."""

import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

import orjson

from groundup.core.files import atomic_write

if TYPE_CHECKING:
    from groundup.train.trackers import TrackedRun

METRICS_FILE = "metrics.jsonl"
STARTS_FILE = "starts.jsonl"
"""When, and on what, a run was begun and gone on with, a line each."""
_CUT_SHORT = 1 << 62  # the step of an incomplete record


class Sink(Protocol):
    """A writer of scalars, as TensorBoard's ``SummaryWriter`` is."""

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Writes one value."""
        ...


class Metrics:
    """Appends records to a run's ``metrics.jsonl``; each has "kind" and "step".

    Args:
        run_dir: The run folder.
        from_step: Records of later steps are dropped: they belong to an attempt that was not saved.
        tensorboard: Folder for TensorBoard events, or None.
        trackers: Told of each record too, and of the end.
        mute: Whether to write nothing, because another rank does.
        start: What is recorded of this start beside its step and time.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        from_step: int,
        tensorboard: Path | None,
        trackers: Sequence["TrackedRun"] = (),
        mute: bool = False,
        start: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> None:
        self._file: IO[bytes] | None = None
        self._sinks: list[Sink] = []
        self._trackers = trackers
        if mute:
            return
        self._run_dir = run_dir
        self._tensorboard = tensorboard
        self._file = self._open(from_step)
        with (run_dir / STARTS_FILE).open("ab") as starts:
            starts.write(orjson.dumps({"step": from_step, "time": time.time(), **start}) + b"\n")

    def go_back(self, step: int) -> None:
        """Drops the records of steps after ``step``, which will be made again."""
        if self._file is not None:
            self._file.close()
            self._file = self._open(step)

    def _open(self, from_step: int) -> IO[bytes]:
        path = self._run_dir / METRICS_FILE
        if path.exists():
            kept = [line for line in path.read_bytes().splitlines() if _step_of(line) <= from_step]
            with atomic_write(path) as file:
                file.writelines(line + b"\n" for line in kept)
        if self._tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._sinks = [SummaryWriter(str(self._tensorboard), purge_step=from_step + 1)]
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
        for tracker in self._trackers:
            tracker.record(kind, step, values)

    def __enter__(self) -> Self:
        """Begins the run whose end trackers are told of."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tells trackers that the run has ended, and by what."""
        for tracker in self._trackers:
            tracker.close(error)


def last_step(path: Path) -> int:
    """Returns the highest step of the records in a ``metrics.jsonl``; 0 where there are none."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return max((step for step in map(_step_of, lines) if step < _CUT_SHORT), default=0)


def _step_of(line: bytes) -> int:
    try:
        return int(orjson.loads(line)["step"])
    except (orjson.JSONDecodeError, KeyError):  # the line that a kill cut short
        return _CUT_SHORT
