"""What a training run shows between two log lines, on a terminal."""

import time

from groundup.core.progress import human_count, human_seconds
from groundup.train.metrics import Stopwatch
from groundup.train.setup import Run


class LiveStatus:
    """The present state of a run in under 80 columns; read by another thread than the one that trains.

    Args:
        run: Which is trained.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loss = ""
        self._tokens_per_second = 0.0
        self._phase = ("", 0)
        self._phase_began = time.monotonic()
        self._records_before = 0
        self.begin(Stopwatch())

    def begin(self, stopwatch: Stopwatch, loss: float | None = None) -> None:
        """Begins an interval; ``loss`` is that of the last one."""
        self._stopwatch, self._tokens_before = stopwatch, self._run.state.tokens
        if loss is not None:
            self._loss = f"loss {loss:.4f}"

    def text(self) -> str:
        """Step, loss of the last log line, speed and time left; how long a validation or a save takes."""
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
