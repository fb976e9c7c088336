"""Trains a few steps of a run under other settings, as `groundup train` would, and keeps what came of it."""

import dataclasses
import math
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import torch

from groundup.checkpoint.megatron.copies import MegatronCopies
from groundup.core.config import to_dict, to_yaml
from groundup.core.manifest import fingerprint
from groundup.plan.autotune import Choice, Measured
from groundup.plan.fitting import Settings
from groundup.tokens.sampling.batch_ramp import BatchRamp
from groundup.train.config import TrainConfig
from groundup.train.log_config import LogConfig
from groundup.train.measurements import EvalConfig, SampleConfig
from groundup.train.schedules.constant import Constant
from groundup.train.schedules.warmup import Steps
from groundup.train.stability.spike_guard import NoSpikeGuard

WARMUP_STEPS = 3
"""Steps that do not count: memory is taken, kernels are chosen and compiled."""

_KEPT = ("tokens_per_second", "memory")
_MOST_STEPS = 200
_GENTLE_SCALE = 2.0**10
"""First loss scale of fp16: a higher one overflows at first, and skips updates."""

Launch = Callable[[Path], str]
"""Trains the config of a file on the ranks of its layout; returns why it failed, or an empty string."""


class Probe:
    """Trains a few steps of each choice in a folder of its own, which is then removed.

    A probe ends as a run does, with an evaluation and a checkpoint, so that what they take is there too.

    Args:
        config: Of the run, with its device.
        folder: For the probes' run folders.
        launch: Starts the training.
        steps: That count, at least.
        seconds: That the counted steps shall take, at least; many short steps are then measured.
        journal: File of what was measured, of earlier calls too; None to keep nothing.
        machine: What the figures hold for.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        launch: Launch,
        *,
        steps: int,
        seconds: float,
        journal: Path | None,
        machine: object,
    ) -> None:
        self._config = config
        self._folder = folder
        self._launch = launch
        self._steps = steps
        self._seconds = seconds
        self._journal = journal
        self._machine = machine
        self._known = _read(journal) if journal else {}
        self._seconds_of_step = math.inf

    def measure(self, choice: Choice) -> Measured:
        """Returns what a choice makes, as it was measured now or before."""
        key = fingerprint([self._machine, to_dict(self._config_of(choice, Path("-"), num_steps=1))])
        found = self._known.get(key)
        measured = Measured(choice, **found) if found else self.measure_again(choice)
        if measured.tokens_per_second:  # what failed is tried again by a later call
            tokens = self._config.global_batch_size * self._config.data.sequence_length
            self._seconds_of_step = tokens / measured.tokens_per_second
            if not found and self._journal:
                _write(self._journal, key, measured, choice.settings(self._config))
        return measured

    def measure_again(self, choice: Choice) -> Measured:
        """Returns what a choice makes now."""
        counted = min(_MOST_STEPS, max(self._steps, math.ceil(self._seconds / self._seconds_of_step)))
        run_dir = self._folder / "probe"
        config = self._config_of(choice, run_dir, num_steps=WARMUP_STEPS + counted)
        file = self._folder / "probe.yaml"
        file.write_text(to_yaml(config), encoding="utf-8")
        try:
            if error := self._launch(file):
                return Measured(choice, 0.0, error=error)
            lines = (run_dir / "metrics.jsonl").read_bytes().splitlines()
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)
        records = [one for one in map(orjson.loads, lines) if one["kind"] == "train"][WARMUP_STEPS:]
        rates = [record["tokens_per_second"] for record in records]
        return Measured(choice, statistics.median(rates), max(record["memory_bytes"] for record in records))

    def _config_of(self, choice: Choice, run_dir: Path, *, num_steps: int) -> TrainConfig:
        """Returns a short copy of the run under a choice, with its data, optimizer and precision."""
        config = choice.applied(self._config)
        is_alone = config.device == "cpu" and choice.layout.num_ranks == 1
        validation = dataclasses.replace(
            config.validation,
            interval=num_steps if config.validation.interval else 0,
            num_batches=1,
            patience=0,
        )
        return dataclasses.replace(
            config,
            run_dir=run_dir,
            num_steps=num_steps,
            batch_ramp=BatchRamp(),
            schedule=Constant(),
            schedule_unit="steps",
            schedule_steps=1 << 40,  # never in the midst of the warm-up: the model hardly moves
            schedule_samples=0,
            warmup=Steps(steps=1 << 39),
            threads=config.threads or (torch.get_num_threads() if is_alone else 0),  # none is tried meanwhile
            loss_scale=dataclasses.replace(config.loss_scale, initial=_GENTLE_SCALE),
            start=dataclasses.replace(config.start, state=False),
            log=LogConfig(interval=1, report="never"),
            validation=validation,
            eval=EvalConfig(),
            sample=SampleConfig(),
            checkpoint=dataclasses.replace(
                config.checkpoint, interval=num_steps, keep_last=1, keep_every=0, megatron=MegatronCopies()
            ),
            spike_guard=NoSpikeGuard(),
        )


def _read(journal: Path) -> dict[str, dict[str, Any]]:
    """Returns what was measured before, by key; half a line of a call that was killed is left out."""
    found = {}
    for line in journal.read_bytes().splitlines() if journal.is_file() else []:
        try:
            entry = orjson.loads(line)
            found[entry["key"]] = {name: entry[name] for name in _KEPT}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            continue
    return found


def _write(journal: Path, key: str, measured: Measured, settings: Settings) -> None:
    """Adds a line, behind whatever a call that was killed has left."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    before = journal.read_bytes() if journal.is_file() else b""
    entry = {"key": key, "settings": settings, **{name: getattr(measured, name) for name in _KEPT}}
    with journal.open("ab") as file:
        file.write(b"\n" * (not before.endswith(b"\n") and bool(before)) + orjson.dumps(entry) + b"\n")
