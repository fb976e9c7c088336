"""Checks that a run trains the same model under every layout: a few steps of each against one process."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import orjson

from groundup.core.config import to_yaml
from groundup.core.errors import ConfigError, TrainingError
from groundup.models import ModelConfig
from groundup.parallel.layout import Layout, PipelineConfig, stages_per_rank
from groundup.tokens.sampling.splits import tokenizer_of_data
from groundup.train.config import (
    CheckpointConfig,
    StartConfig,
    TrainConfig,
)
from groundup.train.log_config import LogConfig
from groundup.train.measurements import EvalConfig, SampleConfig, ValidationConfig
from groundup.train.optim import Sgd
from groundup.train.schedules.constant import Constant
from groundup.train.schedules.warmup import Steps
from groundup.train.setup import require_vocabulary
from groundup.train.stability.spike_guard import NoSpikeGuard

ALLOWED = 1e-5
"""Largest relative difference of a step's loss or gradient norm, in fp32."""

_DEGREE = re.compile(r"(dp|cp|tp|pp|zero|shard)(\d+)")
_SCHEDULES = ("gpipe", "interleaved")
_SHRUNK_HEAD = 8
SHRUNK_LENGTH = 64
"""Most tokens of a sample of a shrunk run."""

Curve = dict[int, tuple[float, float]]
"""Step -> loss and gradient norm."""

Launch = Callable[[TrainConfig, Path], int]
"""Trains a config, written to a file, on the ranks of its layout; returns an exit code."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deviation:
    """Holds the largest relative difference of a layout's steps from those of one process.

    Attributes:
        layout: As the user named it.
        loss: Of the loss.
        grad_norm: Of the gradient norm before clipping.
        error: Why it was not measured; empty when it was.
    """

    layout: str
    loss: float = 0.0
    grad_norm: float = 0.0
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the deviation is within ``ALLOWED``."""
        return not self.error and max(self.loss, self.grad_norm) <= ALLOWED


def parse_layout(name: str) -> Layout:
    """Parses a name like "dp2-tp2-zero3" or "pp2-gpipe".

    Raises:
        ConfigError: It is of another form.
    """
    parts = name.split("-")
    degrees = {match[1]: int(match[2]) for part in parts if (match := _DEGREE.fullmatch(part))}
    schedules = [part for part in parts if part in _SCHEDULES]
    if len(degrees) + len(schedules) != len(parts) or len(schedules) > 1:
        raise ConfigError(
            f"{name!r} is no layout",
            where="--layouts",
            fix=f"Write dp2-tp2-zero3, cp2, pp2, or with a schedule ({', '.join(_SCHEDULES)}) pp2-gpipe.",
        )
    if degrees.get("zero", 0) > 3:
        raise ConfigError(f"{name!r}: zero is 0 to 3", where="--layouts")
    pipeline = PipelineConfig(schedule=schedules[0]) if schedules else PipelineConfig()  # type: ignore[arg-type]
    return Layout(**{"dp": 1, **degrees}, pipeline=pipeline)  # type: ignore[arg-type]  # zero was checked


def witness(config: TrainConfig, folder: Path, *, layout: Layout, num_steps: int) -> TrainConfig:
    """Returns a comparable copy of a run: a few steps in fp32 by plain SGD, without dropout.

    SGD, since Adam divides by the size of gradients and so hides a wrong one.

    Args:
        config: The user's.
        folder: The run folder of the copy.
        layout: Of the copy.
        num_steps: Of the copy.
    """
    model: ModelConfig = dataclasses.replace(config.model, dropout=0.0, attention_dropout=0.0)
    return dataclasses.replace(
        config,
        run_dir=folder,
        model=model,
        data=dataclasses.replace(config.data, split="1", validation={}, test={}),
        layout=layout,
        num_steps=num_steps,
        optimizer=Sgd(lr=0.1),
        schedule=Constant(),
        schedule_steps=0,
        warmup=Steps(steps=0),
        precision="fp32",
        compile=False,
        start=dataclasses.replace(config.start, state=False),
        log=LogConfig(interval=1),
        validation=ValidationConfig(interval=0),
        eval=EvalConfig(),
        sample=SampleConfig(),
        checkpoint=CheckpointConfig(interval=num_steps, keep_last=1),
        spike_guard=NoSpikeGuard(),
    )


def shrunk(config: TrainConfig, *, num_layers: int = 2) -> TrainConfig:
    """Returns a small copy of a run: few layers, heads of width 8, at most 64 tokens, all else as it is.

    It begins with random weights, also where the run begins with those of another model.
    """
    hidden_size = _SHRUNK_HEAD * config.model.num_heads
    length = min(SHRUNK_LENGTH, config.data.sequence_length)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model,
            vocab_size=tokenizer_of_data(config.data).vocab_size,  # another's model may have more
            num_layers=num_layers,
            hidden_size=hidden_size,
            ffn_size=4 * hidden_size,
        ),
        start=StartConfig(),
        data=dataclasses.replace(config.data, sequence_length=length),
    )


def verify_parallel(
    config: TrainConfig,
    layouts: Mapping[str, Layout],
    folder: Path,
    *,
    launch: Launch,
    num_steps: int,
    shrink: bool,
) -> Iterator[Deviation]:
    """Trains under each layout, and yields how far it is from one process.

    Args:
        config: The user's.
        layouts: By what the user calls them.
        folder: For the copies' run folders.
        launch: Starts the training of a copy.
        num_steps: Steps of each.
        shrink: See ``shrunk``; with a layer for each stage of a pipeline.

    Raises:
        ConfigError: The model's vocabulary is not the tokenizer's.
        TrainingError: The run does not even train on one process.
    """
    require_vocabulary(config, tokenizer_of_data(config.data))
    if shrink:
        stages = (layout.pp * stages_per_rank(layout.pipeline) for layout in layouts.values())
        config = shrunk(config, num_layers=max(2, *stages))
    alone = _curve(config, folder / "alone", Layout(), launch, num_steps)
    if alone is None:
        raise TrainingError("the run does not train on one process", where=folder / "alone")
    for name, layout in layouts.items():
        curve = _curve(config, folder / name, layout, launch, num_steps)
        if curve is None or curve.keys() != alone.keys():
            yield Deviation(layout=name, error="did not train to the end")
            continue
        loss, norm = (
            max(
                abs(curve[step][entry] - expected[entry]) / abs(expected[entry])
                for step, expected in alone.items()
            )
            for entry in (0, 1)
        )
        yield Deviation(layout=name, loss=loss, grad_norm=norm)


def _curve(
    config: TrainConfig,
    folder: Path,
    layout: Layout,
    launch: Launch,
    num_steps: int,
) -> Curve | None:
    """Trains one layout and reads its steps; None where training failed."""
    copy = witness(config, folder, layout=layout, num_steps=num_steps)
    return read_curve(folder) if trains(copy, launch) else None


def trains(config: TrainConfig, launch: Launch) -> bool:
    """Trains a config, written to a file beside its run folder; returns whether it came to its end."""
    file = config.run_dir.with_name(f"{config.run_dir.name}.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_yaml(config), encoding="utf-8")
    return launch(config, file) == 0


def read_curve(run_dir: Path) -> Curve:
    """Reads loss and gradient norm of each step of a run that logs every step."""
    records = [orjson.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().splitlines()]
    return {r["step"]: (r["loss"], r["grad_norm"]) for r in records if r["kind"] == "train"}
