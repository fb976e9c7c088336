"""Validation of layouts, which proposes the nearest ones that work."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from groundup.core.errors import ConfigError
from groundup.models import ModelConfig
from groundup.parallel.context_parallel import context_reasons
from groundup.parallel.layout import Layout, describe_layout, stage_reasons
from groundup.parallel.tensor_parallel import tensor_reasons

_SHOWN = 3
_DEGREES = ("dp", "cp", "tp", "pp")


def validate_layout(
    layout: Layout,
    model: ModelConfig,
    *,
    sequence_length: int,
    batch_sizes: Sequence[int],
    micro_batch_size: int,
    world_size: int,
    is_fixed: bool = True,
) -> None:
    """Refuses a layout that cannot work, with all reasons at once and the nearest layouts that can.

    Args:
        layout: As configured.
        model: Architecture.
        sequence_length: Tokens of a sample.
        batch_sizes: All global batch sizes of the run; the last is that of most steps.
        micro_batch_size: Samples of one forward pass.
        world_size: Number of ranks.
        is_fixed: Whether all ranks must be used; else layouts of fewer are proposed too.

    Raises:
        ConfigError: It cannot.
    """
    reasons = functools.partial(
        layout_reasons,
        model=model,
        sequence_length=sequence_length,
        batch_sizes=batch_sizes,
        micro_batch_size=micro_batch_size,
    )
    found = reasons(layout, world_size=world_size)
    if not found:
        return
    sizes = [world_size] if is_fixed else range(world_size, 0, -1)
    candidates = _nearest(layout, world_size, sizes)
    near = [one for one in candidates if not reasons(one, world_size=one.num_ranks)]
    names = [name for name in _DEGREES if name in ("dp", "tp") or getattr(layout, name) > 1]
    shown = " or ".join(
        " ".join(f"layout.{name}={getattr(one, name)}" for name in names) for one in near[:_SHOWN]
    )
    raise ConfigError(
        "this layout cannot work: " + "; ".join(found),
        where=f"layout {describe_layout(layout)} on {world_size} ranks",
        fix=f"Nearest that do: {shown}." if near else "Change the batch or the model.",
    )


def layout_reasons(
    layout: Layout,
    *,
    model: ModelConfig,
    sequence_length: int,
    batch_sizes: Sequence[int],
    micro_batch_size: int,
    world_size: int,
) -> list[str]:
    """Returns why a layout cannot work, a sentence each."""
    found = []
    factors = [(name, getattr(layout, name)) for name in _DEGREES]
    copy = " x ".join(f"{name} {degree}" for name, degree in factors if name != "dp" and degree > 1)
    product = " x ".join(f"{name} {degree}" for name, degree in factors if name == "dp" or degree > 1)
    if layout.dp and layout.num_ranks != world_size:
        found.append(f"{product} are {layout.num_ranks} ranks, there are {world_size}")
    elif world_size % layout.ranks_of_a_copy:
        found.append(f"{world_size} ranks are not a multiple of {copy}")
    concrete = layout.over(world_size)
    uneven = [size for size in batch_sizes if size % (micro_batch_size * concrete.dp)]
    if uneven:
        name = "global_batch_size" if uneven[-1] == batch_sizes[-1] else "batch_ramp's size"
        found.append(
            f"{name} {uneven[-1]} is not a multiple of micro_batch_size {micro_batch_size} x dp {concrete.dp}"
        )
    if layout.zero and layout.shard and concrete.dp % layout.shard:
        found.append(f"dp {concrete.dp} is not a multiple of shard {layout.shard}")
    if layout.shard and not layout.zero:
        found.append("shard has no effect with zero 0")
    found += context_reasons(layout.cp, sequence_length)
    for size in batch_sizes:
        number = size // (micro_batch_size * concrete.dp)
        reasons = stage_reasons(layout, num_layers=model.num_layers, num_micro_batches=number)
        found += [reason for reason in reasons if reason not in found]
    tokens = sequence_length // layout.cp
    return found + [reason.rstrip(".") for reason in tensor_reasons(model, layout.tp, tokens)]


def _nearest(layout: Layout, world_size: int, sizes: Sequence[int]) -> Iterator[Layout]:
    """Yields layouts over so many ranks, the nearest first, with no other kinds of parallelism."""
    wanted = layout.over(world_size)
    names = [name for name in _DEGREES if name in ("dp", "tp") or getattr(layout, name) > 1]

    def distance(degrees: Sequence[int]) -> float:
        pairs = zip(names, degrees, strict=True)
        return sum(abs(math.log2(degree / getattr(wanted, name))) for name, degree in pairs)

    choices = itertools.product(range(1, world_size + 1), repeat=len(names))
    for degrees in sorted((c for c in choices if math.prod(c) in sizes), key=distance):
        yield dataclasses.replace(layout, shard=0, **dict(zip(names, degrees, strict=True)))  # type: ignore[arg-type]
