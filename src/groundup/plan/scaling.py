"""One run on ever more devices: the time of a step for each number of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from groundup.parallel.layout import describe_layout
from groundup.parallel.validate import layout_reasons
from groundup.plan.devices import Devices
from groundup.plan.fitting import Settings, search
from groundup.plan.rank_memory import Step, highest
from groundup.plan.run_step import PrecisionOf, step_of_run
from groundup.plan.step_time import StepTime, step_time
from groundup.tokens.sampling.batch_ramp import BatchRamp
from groundup.train.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A number of devices, and what they do.

    Attributes:
        gpus: Number of devices.
        batch: Samples of a step.
        layout: In words, or the settings that a search chose.
        settings: Dotted keys and values that a search chose.
        memory: Bytes of the rank with most of them; 0 without a layout.
        time: Of a step; None where no layout works.
        reason: Why none does, or what speaks against it.
    """

    gpus: int
    batch: int
    layout: str = ""
    settings: Settings = dataclasses.field(default_factory=dict)
    memory: int = 0
    time: StepTime | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        return dataclasses.asdict(self)


def scale(
    config: TrainConfig,
    devices: Devices,
    counts: Sequence[int],
    *,
    precision: PrecisionOf,
    searches: bool = False,
    grows: bool = False,
) -> list[Point]:
    """Returns what a run does on each number of devices.

    Args:
        config: Of the run. Without a search its layout stays, and ``dp`` takes up the devices.
        devices: Their kind and links.
        counts: Numbers of devices, in any order.
        precision: Of matrix products.
        searches: Take the fastest layout that fits for each number.
        grows: Let the batch grow with the devices, from the config's at the least of them (weak scaling).
    """
    points = []
    for gpus in sorted(counts):
        batch = config.global_batch_size * gpus // min(counts) if grows else config.global_batch_size
        rows = 1 if searches else config.micro_batch_size
        if batch % rows:
            reason = f"a batch of {batch} is not a multiple of micro_batch_size {rows}"
            points.append(Point(gpus=gpus, batch=batch, reason=reason))
            continue
        at = dataclasses.replace(
            config, global_batch_size=batch, micro_batch_size=rows, batch_ramp=BatchRamp()
        )
        points.append((_searched if searches else _laid_out)(at, devices, gpus, precision))
    return points


def _laid_out(config: TrainConfig, devices: Devices, gpus: int, precision: PrecisionOf) -> Point:
    layout = dataclasses.replace(config.layout, dp=0)
    batch = config.global_batch_size
    reasons = layout_reasons(
        layout,
        model=config.model,
        sequence_length=config.data.sequence_length,
        batch_sizes=[batch],
        micro_batch_size=config.micro_batch_size,
        world_size=gpus,
    )
    if reasons:
        return Point(gpus=gpus, batch=batch, reason=reasons[0])
    layout = layout.over(gpus)
    step = step_of_run(config, layout, precision)
    total = highest(step).total
    over = 0 < devices.usable < total
    return Point(
        gpus=gpus,
        batch=batch,
        layout=describe_layout(layout),
        memory=total,
        time=step_time(step, devices.machines(precision)),
        reason="does not fit" if over else "",
    )


def _searched(config: TrainConfig, devices: Devices, gpus: int, precision: PrecisionOf) -> Point:
    batch = config.global_batch_size
    found, legal, least = search(
        config,
        one_rank(config, precision),
        ranks=gpus,
        capacity=devices.usable,
        machines=devices.machines(precision),
    )
    if not found:
        reason = f"none of {legal:,} layouts fits" if legal else "no layout can work with this batch"
        return Point(gpus=gpus, batch=batch, memory=least, reason=reason)
    best = found[0]
    words = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in best.settings.items())
    return Point(
        gpus=gpus, batch=batch, layout=words, settings=best.settings, memory=best.total, time=best.time
    )


def one_rank(config: TrainConfig, precision: PrecisionOf) -> Step:
    """Returns the step of a run on one device, from which a search begins."""
    alone = dataclasses.replace(config.layout, dp=1, tp=1, pp=1, cp=1, zero=0, shard=0).over(1)
    return step_of_run(config, alone, precision)
