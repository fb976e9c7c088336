"""What a layout is, whether it can work, and which ones near it do."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from annotated_types import Ge

from groundup.core.config import config
from groundup.core.errors import ConfigError
from groundup.models import ModelConfig
from groundup.parallel.context import context_reasons
from groundup.parallel.stages import stage_reasons
from groundup.parallel.tensor import tensor_reasons

_SHOWN = 3
_DEGREES = ("dp", "cp", "tp", "pp")


@config
class PipelineConfig:
    """How the micro-batches of a step pass through the stages of a pipeline.

    Attributes:
        schedule: ``1f1b`` (Narayanan et al. 2019, arXiv:1806.03377), ``interleaved`` 1F1B with several stages
            a rank (2021, arXiv:2104.04473), ``gpipe`` (Huang et al. 2018, arXiv:1811.06965), or without
            bubbles ``interleaved-zero-bubble`` and ``zbv`` (Qi et al. 2023, arXiv:2401.10241).
        stages_per_rank: Of the interleaved schedules; ``zbv`` always has 2, the others 1.
        layers: Layers of each stage from the first to the last; empty to even out their costs, with
            embedding and head counted.
    """

    schedule: Literal["1f1b", "interleaved", "gpipe", "interleaved-zero-bubble", "zbv"] = "1f1b"
    stages_per_rank: Annotated[int, Ge(0)] = 0
    layers: tuple[int, ...] = ()


@config
class Layout:
    """How a run is spread over ranks: pp x dp x cp x tp of them.

    Attributes:
        dp: Data-parallel ranks, each of which takes its share of every global batch; 0 for as many as were
            launched, or one.
        tp: Ranks that share each layer (tensor parallelism, with sequence parallelism between).
        pp: Ranks that have the layers one group after the other (pipeline parallelism).
        cp: Ranks that share the tokens of each sequence (context parallelism).
        zero: What data-parallel ranks share instead of each holding it: 0 nothing, 1 the optimizer's
            state, 2 also the gradients, 3 also the weights (ZeRO; Rajbhandari et al. 2019,
            arXiv:1910.02054).
        shard: Data-parallel ranks that share one copy, under ``zero`` 1 to 3; 0 for all of them. Fewer is
            hybrid sharding: copies are shared within, say, a machine and repeated across machines.
    """

    dp: Annotated[int, Ge(0)] = 0
    tp: Annotated[int, Ge(1)] = 1
    pp: Annotated[int, Ge(1)] = 1
    cp: Annotated[int, Ge(1)] = 1
    zero: Literal[0, 1, 2, 3] = 0
    shard: Annotated[int, Ge(0)] = 0
    pipeline: PipelineConfig = PipelineConfig()

    @property
    def num_ranks(self) -> int:
        """Ranks that the layout asks for, of which there may be more where ``dp`` is 0."""
        return max(1, self.dp) * self.ranks_of_a_copy

    @property
    def ranks_of_a_copy(self) -> int:
        """Ranks that work on the same samples together."""
        return self.pp * self.cp * self.tp

    def over(self, world_size: int) -> "Layout":
        """The layout with ``dp`` and ``shard`` worked out for so many ranks."""
        dp = self.dp or max(1, world_size // self.ranks_of_a_copy)
        shard = 1 if self.zero == 0 else self.shard or dp
        return dataclasses.replace(self, dp=dp, shard=shard)


def require_layout(
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
        batch_sizes: Samples of a step, all sizes that there are; the last is that of most steps.
        micro_batch_size: Samples of one forward pass.
        world_size: Number of ranks.
        is_fixed: Whether there are just so many; else layouts of fewer are proposed too.

    Raises:
        ConfigError: It cannot.
    """
    reasons = functools.partial(
        _reasons,
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
        where=f"layout {describe(layout)} on {world_size} ranks",
        fix=f"Nearest that do: {shown}." if near else "Change the batch or the model.",
    )


def describe(layout: Layout) -> str:
    """In a few words, e.g. "dp 4, tp 2, zero 3"."""
    words = [f"dp {layout.dp or 'auto'}"]
    words += [f"{name} {getattr(layout, name)}" for name in ("cp", "tp", "pp") if getattr(layout, name) > 1]
    words += [layout.pipeline.schedule] * (layout.pp > 1)
    words += [f"zero {layout.zero}"] * (layout.zero > 0)
    return ", ".join(words + [f"shard {layout.shard}"] * (layout.shard > 0 and layout.zero > 0))


def _reasons(
    layout: Layout,
    *,
    model: ModelConfig,
    sequence_length: int,
    batch_sizes: Sequence[int],
    micro_batch_size: int,
    world_size: int,
) -> list[str]:
    """Why a layout cannot work, one sentence each."""
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
    """Other layouts over so many ranks, the nearest first; only what the user cuts by is cut."""
    wanted = layout.over(world_size)
    names = [name for name in _DEGREES if name in ("dp", "tp") or getattr(layout, name) > 1]

    def distance(degrees: Sequence[int]) -> float:
        pairs = zip(names, degrees, strict=True)
        return sum(abs(math.log2(degree / getattr(wanted, name))) for name, degree in pairs)

    choices = itertools.product(range(1, world_size + 1), repeat=len(names))
    for degrees in sorted((c for c in choices if math.prod(c) in sizes), key=distance):
        yield dataclasses.replace(layout, shard=0, **dict(zip(names, degrees, strict=True)))  # type: ignore[arg-type]
