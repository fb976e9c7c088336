"""The smallest changes with which a run fits its devices, and the fastest layouts that do."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from groundup.core.progress import Progress
from groundup.models.count import training_flops_per_token
from groundup.parallel.activation_checkpointing import Recompute
from groundup.parallel.layout import Layout
from groundup.parallel.validate import layout_reasons
from groundup.plan.rank_memory import Step, highest
from groundup.plan.run_step import with_layout
from groundup.plan.step_time import Machines, StepTime, step_time
from groundup.train.adamw import AdamW
from groundup.train.config import TrainConfig

_MODES = ("none", "selective", "full")
_LEAST_TOKENS = 1024  # of a row on a rank, below which a search shares out no sequence further

Settings = dict[str, Any]
"""Dotted keys of a config and their values."""


def as_overrides(settings: Settings) -> list[str]:
    """Returns settings as words of a command line."""
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    ]


@dataclasses.dataclass(frozen=True)
class Change:
    """Settings with which a run takes less memory.

    Attributes:
        settings: Dotted keys -> values.
        costs: What it costs, in words.
        total: Bytes of the rank with most of them.
        ranks: Devices that the run then takes.
    """

    settings: Settings
    costs: str
    total: int
    ranks: int


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layout of a search that fits.

    Attributes:
        settings: Dotted keys -> values, for the config.
        time: Of a step.
        total: Bytes of the rank with most of them.
    """

    settings: Settings
    time: StepTime
    total: int


def fitting_changes(config: TrainConfig, step: Step, capacity: float) -> list[Change]:
    """Returns changes with which a step fits, those that cost least first; none where nothing does.

    Changes on the same devices come first: single ones, or where none is enough, the fewest of them that are
    together; then those that take more devices, and all together where nothing less is enough.

    Args:
        config: Of the run.
        step: Of the run.
        capacity: Bytes of a device that tensors may take.
    """
    singles = []
    for change in _changes(config, step):
        changed = _changed(config, step, change.settings)
        if changed is not None:
            total = highest(changed).total
            singles.append(_change(step, change.settings, change.costs, changed, total))
    same = [one for one in singles if one.ranks == step.layout.num_ranks]
    more = [one for one in singles if one.ranks != step.layout.num_ranks and one.total <= capacity]
    fitting = [one for one in same if one.total <= capacity] or _together(config, step, same, capacity)
    return [*fitting, *more] or _together(config, step, singles, capacity)


def _together(config: TrainConfig, step: Step, changes: list[Change], capacity: float) -> list[Change]:
    """Returns changes added up in their order until they fit, without those that prove superfluous."""
    settings: Settings = {}
    costs: dict[str, str] = {}
    for one in changes:
        settings |= one.settings
        costs |= dict.fromkeys(one.settings, one.costs)
        if _total(config, step, settings) > capacity:
            continue
        for key in [*settings]:
            fewer = {name: value for name, value in settings.items() if name != key}
            if _total(config, step, fewer) <= capacity:
                settings = fewer
        changed = _changed(config, step, settings)
        assert changed is not None, "its total was counted"
        words = "; ".join(dict.fromkeys(costs[key] for key in settings))
        return [_change(step, settings, words, changed, highest(changed).total)]
    return []


def _change(step: Step, settings: Settings, costs: str, changed: Step, total: int) -> Change:
    """Returns a change, with the number of replicas where it has become another."""
    dp = {"layout.dp": changed.layout.dp} if changed.layout.dp != step.layout.dp else {}
    return Change({**settings, **dp}, costs, total, changed.layout.num_ranks)


def _total(config: TrainConfig, step: Step, settings: Settings) -> float:
    """Returns the bytes under changed settings; infinite where they cannot work together."""
    changed = _changed(config, step, settings)
    return highest(changed).total if changed is not None else math.inf


def search(
    config: TrainConfig, step: Step, *, ranks: int, capacity: float, machines: Machines
) -> tuple[list[Candidate], int, int]:
    """Returns the layouts that fit, the fastest first, the number that can work, and the least memory of any.

    Tried are tensor parallelism within a machine, pipelines (1F1B), context parallelism of no less than 1,024
    tokens a rank, each ZeRO stage, micro-batches that divide the batch, and each mode of recomputation; the
    global batch stays.

    Args:
        config: Of the run; its layout and micro-batch are what is searched for.
        step: Of the run.
        ranks: Devices.
        capacity: Bytes of each that tensors may take.
        machines: What the devices do in a second.
    """
    flops = training_flops_per_token(config.model, config.data.sequence_length)
    found: list[Candidate] = []
    legal, least = 0, 0
    layouts = list(_layouts(config, ranks, machines.per_machine))
    with Progress(f"search over {ranks:,} devices", len(layouts), "layouts") as progress:
        for layout, rows in layouts:
            progress.add(1)
            for mode in _MODES:
                one = with_layout(step, layout, rows=rows, global_batch_size=config.global_batch_size)
                one = dataclasses.replace(one, recompute=Recompute(mode=mode))  # type: ignore[arg-type]
                total = highest(one).total
                legal += 1
                least = min(least or total, total)
                if total > capacity:
                    continue
                time = step_time(one, machines, flops)
                found.append(Candidate(_settings(layout, rows, mode), time, total))
                if mode == "none":
                    break  # recomputing what fits is slower
    # Of times that are the same to three figures: the larger micro-batches, whose products are larger too.
    found.sort(key=lambda one: (float(f"{one.time.total:.3g}"), -one.settings["micro_batch_size"], one.total))
    return found, legal, least


def best_of_each(found: list[Candidate]) -> list[Candidate]:
    """Returns the first candidate of each division of the devices, of any ZeRO stage and micro-batch."""
    first: dict[object, Candidate] = {}
    for one in found:
        degrees = [one.settings.get(f"layout.{name}") for name in ("dp", "tp", "pp", "cp")]
        first.setdefault(tuple(degrees), one)
    return [*first.values()]


def _layouts(config: TrainConfig, ranks: int, per_machine: int) -> Iterator[tuple[Layout, int]]:
    """Yields layouts that can work over so many ranks, with the rows of a micro-batch."""
    powers = [divisor for divisor in range(1, ranks + 1) if ranks % divisor == 0]
    batch = config.global_batch_size
    for tp, pp, cp in itertools.product(powers, powers, powers):
        if (
            tp > per_machine
            or tp * pp * cp > ranks
            or (cp > 1 and config.data.sequence_length // cp < _LEAST_TOKENS)
            or ranks % (tp * pp * cp)
            or (cp > 1 and config.sample.interval)
            or (tp > 1 and config.precision == "fp8")
        ):
            continue
        dp = ranks // (tp * pp * cp)
        if batch % dp:
            continue
        if layout_reasons(
            Layout(dp=dp, tp=tp, pp=pp, cp=cp, pipeline=config.layout.pipeline),
            model=config.model,
            sequence_length=config.data.sequence_length,
            batch_sizes=[batch],
            micro_batch_size=1,
            world_size=ranks,
        ):
            continue
        for zero, rows in itertools.product((0, 1, 2, 3), _row_counts(batch // dp, pp)):
            if (zero and dp * cp == 1) or (zero == 2 and pp > 1):  # pipelines reduce gradients at their end
                continue
            chosen: Settings = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "zero": zero, "shard": 0}
            yield dataclasses.replace(config.layout, **chosen).over(ranks), rows


def _row_counts(samples: int, pp: int) -> list[int]:
    return [1 << power for power in range(8) if samples % (1 << power) == 0 and samples >> power >= pp]


def _settings(layout: Layout, rows: int, mode: str) -> Settings:
    settings: Settings = {f"layout.{name}": getattr(layout, name) for name in ("dp", "tp", "pp", "cp")}
    settings = {key: value for key, value in settings.items() if value != 1 or key == "layout.dp"}
    if layout.zero:
        settings["layout.zero"] = layout.zero
    settings["micro_batch_size"] = rows
    if mode != "none":
        settings["recompute.mode"] = mode
    return settings


def _changes(config: TrainConfig, step: Step) -> Iterator[Change]:
    """Yields single changes, those that cost least first; their memory is counted elsewhere."""
    layout = step.layout

    def change(costs: str, **settings: str | int) -> Change:
        return Change({key.replace("__", "."): value for key, value in settings.items()}, costs, 0, 0)

    rows = config.micro_batch_size
    replicas = layout.dp * layout.cp
    if replicas > 1 and layout.zero == 0:
        yield change("the same bytes are sent", layout__zero=1)
    if config.recompute.mode == "none":
        yield change(
            "attention weights, norms and activation functions are computed twice",
            recompute__mode="selective",
        )
    smaller = [size for size in range(rows // 2, 0, -1) if rows % size == 0]
    for size in smaller:
        yield change("smaller products, which may be slower; results do not change", micro_batch_size=size)
    if replicas > 1 and layout.zero < 2 and step.num_micro_batches > 1:
        yield change("gradients are sent for each micro-batch", layout__zero=2)
    if config.recompute.mode != "full":
        yield change("a third more products", recompute__mode="full")
    if replicas > 1 and layout.zero < 3:
        yield change("weights are sent three times for each micro-batch", layout__zero=3)
    optimizer = config.optimizer
    if isinstance(optimizer, AdamW) and optimizer.state_dtype == "fp32":
        yield change("moments are rounded to 8 bits by chance", optimizer__state_dtype="bf16")
    for name, times in itertools.product(("tp", "pp"), (2, 4, 8)):
        degree = getattr(layout, name) * times
        costs = f"{'more devices' if layout.dp < times else 'fewer replicas'}, which wait for each other"
        yield change(costs, **{f"layout__{name}": degree})


def _changed(config: TrainConfig, step: Step, settings: Settings) -> Step | None:
    """Returns the step with changed settings; None where they cannot work together."""
    layout = step.layout
    tp, pp = settings.get("layout.tp", layout.tp), settings.get("layout.pp", layout.pp)
    dp = max(1, layout.dp * layout.tp * layout.pp // (tp * pp))
    zero: Any = settings.get("layout.zero", layout.zero) if dp * layout.cp > 1 else 0
    rows = settings.get("micro_batch_size", step.batch.rows)
    layout = dataclasses.replace(layout, tp=tp, pp=pp, dp=dp, zero=zero, shard=0)
    if tp > 1 and config.precision == "fp8":
        return None
    if config.global_batch_size % (dp * rows) or layout_reasons(
        layout,
        model=config.model,
        sequence_length=config.data.sequence_length,
        batch_sizes=[config.global_batch_size],
        micro_batch_size=rows,
        world_size=layout.num_ranks,
    ):
        return None
    layout = layout.over(layout.num_ranks)
    changed = with_layout(step, layout, rows=rows, global_batch_size=config.global_batch_size)
    if "recompute.mode" in settings:
        mode = Recompute(mode=settings["recompute.mode"])
        changed = dataclasses.replace(changed, recompute=mode)
    if "optimizer.state_dtype" in settings:
        assert isinstance(config.optimizer, AdamW), "the change is of no other"
        optimizer = dataclasses.replace(config.optimizer, state_dtype=settings["optimizer.state_dtype"])
        changed = dataclasses.replace(changed, optimizer=optimizer)
    return changed
