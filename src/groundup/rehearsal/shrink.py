"""The config of a rehearsal: the user's own, small enough for this machine, with all else as it is."""

import dataclasses
from pathlib import Path

import torch

from groundup.checkpoint.megatron.copies import MegatronCopies
from groundup.core.errors import MachineError
from groundup.parallel.device import PrecisionName, choose_precision
from groundup.parallel.layout import Layout, describe_layout, stages_per_rank
from groundup.tokens.sampling.batch_ramp import BatchRamp
from groundup.tokens.sampling.data_config import DataConfig, SourceConfig
from groundup.train.config import StartConfig, TrainConfig
from groundup.train.log_config import LogConfig
from groundup.train.measurements import EvalConfig, ValidationConfig
from groundup.train.schedules.warmup import Steps
from groundup.verify.parallel import SHRUNK_LENGTH, shrunk

NUM_STEPS = 60
INTERVAL = 10
"""Steps between checkpoints, and between validations."""

_FEW_RANKS = 4
_MANY_RANKS = 8
_MICRO_BATCH = 2


def rehearsed_layout(layout: Layout) -> Layout:
    """Returns the layout itself where it has few ranks, else one of the same kinds of parallelism in twos.

    A data-parallel degree that is left to the launcher becomes 2.
    """
    pipeline = dataclasses.replace(layout.pipeline, layers=())  # the small model has fewer layers
    given = dataclasses.replace(layout, dp=layout.dp or 2, pipeline=pipeline)
    if given.num_ranks <= _FEW_RANKS:
        return given
    twos = {name: min(2, getattr(given, name)) for name in ("dp", "cp", "tp", "pp")}
    return dataclasses.replace(given, **twos, shard=min(given.shard, 2))


def resumed_layout(layout: Layout) -> Layout:
    """Returns a layout of another number of ranks, for the second half of a rehearsal."""
    if layout.dp > 1:
        return dataclasses.replace(layout, dp=layout.dp // 2, shard=0)
    if layout.num_ranks * 2 <= _MANY_RANKS:
        return dataclasses.replace(layout, dp=2)
    kind = next(name for name in ("cp", "tp", "pp") if getattr(layout, name) > 1)
    return dataclasses.replace(layout, **{kind: 1})  # type: ignore[arg-type]  # a degree


def rehearsed_config(config: TrainConfig, *, run_dir: Path, data: Path, tokenizer: Path) -> TrainConfig:
    """Returns a small copy of a run on other data.

    Args:
        config: The user's.
        run_dir: Of the copy.
        data: Prefix of its tokens, which stands for every source of the user's.
        tokenizer: Folder of theirs.
    """
    layout = rehearsed_layout(config.layout)
    stages = layout.pp * stages_per_rank(layout.pipeline)
    micro_batch_size = min(_MICRO_BATCH, config.micro_batch_size)
    return dataclasses.replace(
        config,
        run_dir=run_dir,
        data=_data(config.data, data, tokenizer),
        num_steps=NUM_STEPS,
        schedule_steps=0,
        schedule_samples=0,
        warmup=Steps(steps=INTERVAL if config.warmup_length else 0),
        micro_batch_size=micro_batch_size,
        global_batch_size=micro_batch_size * layout.dp * 2 * max(2, stages),
        batch_ramp=BatchRamp(),
        layout=layout,
        precision=_precision(config),
        device="cpu",
        compile=False,
        start=StartConfig(),
        log=LogConfig(interval=1),
        validation=ValidationConfig(interval=INTERVAL, num_batches=2),
        eval=EvalConfig(),
        sample=dataclasses.replace(config.sample, interval=INTERVAL if config.sample.interval else 0),
        checkpoint=dataclasses.replace(
            config.checkpoint, interval=INTERVAL, keep_last=2, keep_every=0, megatron=MegatronCopies()
        ),
    )


def shrunk_model(small: TrainConfig) -> TrainConfig:
    """Returns the config with a small model, once the tokens are there, whose vocabulary it has."""
    return shrunk(small, num_layers=max(2, small.layout.pp * stages_per_rank(small.layout.pipeline)))


def differences(config: TrainConfig, small: TrainConfig) -> list[str]:
    """Returns what a rehearsal does not do as the run will, a phrase each."""
    length = min(SHRUNK_LENGTH, config.data.sequence_length)
    found = [
        f"{length} tokens a sample, not {config.data.sequence_length}",
        f"{small.num_steps} steps of {small.global_batch_size} samples, not {config.num_steps:,} of"
        f" {config.global_batch_size}",
    ]
    if small.layout != config.layout:
        found.append(f"{describe_layout(small.layout)}, not {describe_layout(config.layout)}")
    if small.precision != config.precision:
        found.append(f"precision {small.precision}: this CPU has no {config.precision}")
    found += ["random weights, not those of start.path"] * (config.start.path is not None)
    found += ["without torch.compile"] * bool(config.compile)
    found += ["a global batch that does not grow"] * bool(config.batch_ramp.start)
    return found + ["without the tasks of eval.every"] * bool(config.eval.every)


def _data(data: DataConfig, path: Path, tokenizer: Path) -> DataConfig:
    """Puts one data set in the place of each source, with splits that a few documents suffice for."""

    def moved(sources: dict[str, SourceConfig]) -> dict[str, SourceConfig]:
        return {
            name: dataclasses.replace(source, path=path, split="", max_epochs=0)
            for name, source in sources.items()
        }

    return dataclasses.replace(
        data,
        path=path if data.path is not None else None,
        sources=moved(data.sources),
        validation=moved(data.validation),
        test=moved(data.test),
        tokenizer=tokenizer,
        opening_id=None,
        split="8,1,1",
        max_epochs=0,
    )


def _precision(config: TrainConfig) -> PrecisionName:
    try:
        choose_precision(config.precision, torch.device("cpu"))
    except MachineError:
        return "auto"
    return config.precision
