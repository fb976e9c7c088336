"""The plan of a run: all that can be known of it before it takes a device."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from groundup.core.errors import ConfigError, DataError
from groundup.models.count import num_parameters, training_flops_per_token
from groundup.parallel.activation_checkpointing import Recompute
from groundup.parallel.layout import Layout, describe_layout, stages_per_rank
from groundup.parallel.validate import validate_layout
from groundup.plan.checkpoint_disk import CheckpointDisk, checkpoint_disk
from groundup.plan.devices import Devices
from groundup.plan.fitting import Change, fitting_changes
from groundup.plan.megatron_memory import megatron_memory
from groundup.plan.part_counts import count_by_part, count_on_rank
from groundup.plan.rank_memory import RankMemory, Step, highest, memory_of_ranks
from groundup.plan.reading import Reading, open_data, reading_of
from groundup.plan.run_step import planned_precision, step_of_run
from groundup.plan.step_time import StepTime, step_time
from groundup.tokens.sampling.splits import require_plan, tokenizer_of_data
from groundup.train.config import TrainConfig
from groundup.train.schedules import lr_ratio
from groundup.train.setup import require_vocabulary

MODES = ("none", "selective", "full")
_MANY_EPOCHS = 4
_MANY_IDLE = 0.25


@dataclasses.dataclass(frozen=True)
class Effort:
    """Operations, time and energy of a run.

    Attributes:
        flops_per_token: Of both passes.
        flops: Of the run.
        tokens_per_second: Of all ranks; 0 where no speed is known, and then hours too.
        kilowatt_hours: Of the devices at their full power; 0 where that is not known.
    """

    flops_per_token: float
    flops: float
    tokens_per_second: float = 0.0
    hours: float = 0.0
    kilowatt_hours: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A run before it begins.

    Attributes:
        layout: In words.
        parameters: By part, at the padded vocabulary.
        logical_parameters: In all, at the true vocabulary.
        parameters_per_rank: The most that a rank holds, without sharding.
        memory: Of each rank of the pipeline.
        by_mode: Bytes of the rank with most of them, by mode of recomputation.
        capacity: Bytes of a device that tensors may take; 0 where that is not known.
        changes: With which the run fits, where it does not.
        time: Of a step, where the device is known and no speed was given.
        problems: Because of which the run would not start, or not end.
        warnings: What may not be meant.
    """

    layout: str
    ranks: int
    precision: str
    micro_batches: int
    parameters: dict[str, int]
    logical_parameters: int
    parameters_per_rank: int
    memory: list[RankMemory]
    by_mode: dict[str, int]
    capacity: float
    changes: list[Change]
    reading: Reading
    disk: CheckpointDisk
    disk_free: int
    effort: Effort
    time: StepTime | None
    problems: list[str]
    warnings: list[str]

    @property
    def fits(self) -> bool:
        """Whether each rank's memory is enough, or not known."""
        return not self.capacity or max(one.total for one in self.memory) <= self.capacity

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, with totals."""
        tree = dataclasses.asdict(self)
        for one, rank in zip(tree["memory"], self.memory, strict=True):
            one["total"] = rank.total
        return tree | {"fits": self.fits}


def planned_layout(config: TrainConfig, devices: Devices) -> Layout:
    """Returns the layout over the planned devices.

    Raises:
        ConfigError: It cannot work, with the reasons and the nearest that can.
    """
    ranks = devices.ranks or config.layout.num_ranks
    validate_layout(
        config.layout,
        config.model,
        sequence_length=config.data.sequence_length,
        batch_sizes=config.batch_sizes.every,
        micro_batch_size=config.micro_batch_size,
        world_size=ranks,
        is_fixed=devices.ranks > 0,
    )
    return config.layout.over(ranks)


def plan_run(
    config: TrainConfig, devices: Devices, *, reads_data: bool = True, as_megatron: bool = False
) -> Plan:
    """Plans a run.

    Args:
        config: Of the run.
        devices: What it is for.
        reads_data: Whether the data is there, so that its headers are read.
        as_megatron: Count the memory of Megatron-LM instead of ours.

    Raises:
        ConfigError: The layout cannot work, or the device lacks the precision.
        DataError: The data is missing or malformed.
    """
    layout = planned_layout(config, devices)
    precision = planned_precision(config, devices.kind)
    step = step_of_run(config, layout, precision)
    splits = open_data(config) if reads_data else None
    reading = reading_of(config, splits)
    problems = []
    if splits is not None:
        try:
            require_plan(
                splits,
                num_steps=config.num_steps,
                batch_sizes=config.batch_sizes,
                validation=config.validation.interval > 0,
            )
            require_vocabulary(config, tokenizer_of_data(config.data))
        except (DataError, ConfigError) as error:
            problems.append(str(error))
    memory = megatron_memory(step) if as_megatron else memory_of_ranks(step)
    capacity = devices.usable
    most = max(one.total for one in memory)
    disk = checkpoint_disk(config)
    free = shutil.disk_usage(_existing(config.run_dir)).free
    predicts = devices.kind and config.device != "cpu" and not devices.mfu and not devices.tokens_per_second
    time = step_time(step, devices.machines(precision)) if predicts else None
    return Plan(
        layout=describe_layout(layout),
        ranks=layout.num_ranks,
        precision=precision,
        micro_batches=step.num_micro_batches,
        parameters=count_by_part(config.model),
        logical_parameters=num_parameters(config.model),
        parameters_per_rank=max(one.parameters for one in memory)
        if layout.pp > 1
        else count_on_rank(config.model, layout.tp),
        memory=memory,
        by_mode={} if as_megatron else {mode: highest(_under(step, mode)).total for mode in MODES},
        capacity=capacity,
        changes=fitting_changes(config, step, capacity) if 0 < capacity < most and not as_megatron else [],
        reading=reading,
        disk=disk,
        disk_free=free,
        effort=_effort(config, devices, layout, reading, precision, time),
        time=time,
        problems=problems,
        warnings=[
            *_of_data(config, reading),
            *_of_schedule(config),
            *_of_layout(step, devices),
            *_of_disk(disk, free),
        ],
    )


def _under(step: Step, mode: str) -> Step:
    if mode == step.recompute.mode:
        return step
    return dataclasses.replace(step, recompute=Recompute(mode=mode))  # type: ignore[arg-type]


def _effort(
    config: TrainConfig,
    devices: Devices,
    layout: Layout,
    reading: Reading,
    precision: str,
    time: StepTime | None,
) -> Effort:
    flops_per_token = training_flops_per_token(config.model, config.data.sequence_length)
    flops = flops_per_token * reading.tokens
    speed = devices.tokens_per_second or (time.tokens_per_second if time else 0.0)
    if not speed and devices.kind and config.device != "cpu":
        speed = layout.num_ranks * devices.kind.peak_flops(precision) * devices.mfu / flops_per_token
    hours = reading.tokens / speed / 3600 if speed else 0.0
    watts = devices.kind.watts if devices.kind and config.device != "cpu" else 0
    return Effort(flops_per_token, flops, speed, hours, layout.num_ranks * watts * hours / 1000)


def _of_data(config: TrainConfig, reading: Reading) -> list[str]:
    found = []
    if reading.splits and config.validation.interval:
        samples = reading.splits["validation"].samples
        wanted = config.validation.num_batches * config.micro_batch_size
        if 0 < samples < max(wanted, 10):
            found.append(
                f"validation has {samples:,} sample{'s' * (samples != 1)}"
                + (
                    f", validation.num_batches={config.validation.num_batches} would take {wanted:,}"
                    if wanted
                    else ""
                )
                + ": its loss will be noisy; raise its share in data.split"
            )
        if not reading.splits["test"].samples:
            found.append("the test split has no sample: the run will end without a loss on it")
    if reading.epochs > _MANY_EPOCHS:
        found.append(
            f"the run reads its data {reading.epochs:.1f} times; from 4 epochs on repeating adds"
            " less and less (Muennighoff et al. 2023, arXiv:2305.16264)"
        )
    return found


def _of_schedule(config: TrainConfig) -> list[str]:
    end = float(config.num_steps if config.schedule_unit == "steps" else config.num_samples)
    if config.horizon <= end:
        return []
    ratio = lr_ratio(config.schedule, end, warmup=config.warmup_length, horizon=config.horizon)
    return [
        f"the schedule ends after {config.horizon:,.0f} {config.schedule_unit}, the run after {end:,.0f}: the"
        f" learning rate ends at {ratio:.0%} of its peak"
    ]


def _of_layout(step: Step, devices: Devices) -> list[str]:
    layout, found = step.layout, []
    if layout.pp > 1:
        idle = (layout.pp - 1) / (step.num_micro_batches * stages_per_rank(layout.pipeline))
        if idle > _MANY_IDLE:
            found.append(
                f"the pipeline idles for {idle:.0%} of the time of its products: {step.num_micro_batches}"
                f" micro-batches over {layout.pp} stages; make micro_batch_size smaller or the batch larger"
            )
    if layout.tp > devices.per_machine:
        found.append(
            f"layout.tp={layout.tp} spans machines of {devices.per_machine} devices:"
            " each layer waits for the network"
        )
    if layout.cp > 1 and layout.zero == 0:
        found.append("layout.cp shares tokens, not weights: layout.zero=1 to 3 would share those too")
    return found


def _of_disk(disk: CheckpointDisk, free: int) -> list[str]:
    if disk.peak <= free:
        return []
    return [
        f"the checkpoints need {disk.peak / 1e9:,.1f} GB, the disk of run_dir has {free / 1e9:,.1f} GB"
        " free: lower checkpoint.keep_last, or raise checkpoint.keep_every"
    ]


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
