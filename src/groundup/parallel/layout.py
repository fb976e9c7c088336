"""What a layout is, whether it can work, and which ones near it do."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from annotated_types import Ge

from groundup.core.config import config
from groundup.core.errors import ConfigError
from groundup.models import ModelConfig
from groundup.parallel.tensor import tensor_reasons

_SHOWN = 3


@config
class Layout:
    """How a run is spread over ranks: dp x tp of them.

    Attributes:
        dp: Data-parallel ranks, each of which takes its share of every global batch; 0 for as many as were
            launched, or one.
        tp: Ranks that share each layer (tensor parallelism, with sequence parallelism between).
        zero: What data-parallel ranks share instead of each holding it: 0 nothing, 1 the optimizer's
            state, 2 also the gradients, 3 also the weights (ZeRO; Rajbhandari et al. 2019,
            arXiv:1910.02054).
        shard: Data-parallel ranks that share one copy, under ``zero`` 1 to 3; 0 for all of them. Fewer is
            hybrid sharding: copies are shared within, say, a machine and repeated across machines.
    """

    dp: Annotated[int, Ge(0)] = 0
    tp: Annotated[int, Ge(1)] = 1
    zero: Literal[0, 1, 2, 3] = 0
    shard: Annotated[int, Ge(0)] = 0

    @property
    def num_ranks(self) -> int:
        """Ranks that the layout asks for, of which there may be more where ``dp`` is 0."""
        return max(1, self.dp) * self.tp

    def over(self, world_size: int) -> "Layout":
        """The layout with ``dp`` and ``shard`` worked out for so many ranks."""
        dp = self.dp or max(1, world_size // self.tp)
        shard = 1 if self.zero == 0 else self.shard or dp
        return Layout(dp=dp, tp=self.tp, zero=self.zero, shard=shard)


def require_layout(
    layout: Layout,
    model: ModelConfig,
    *,
    sequence_length: int,
    global_batch_size: int,
    micro_batch_size: int,
    world_size: int,
    is_fixed: bool = True,
) -> None:
    """Refuses a layout that cannot work, with all reasons at once and the nearest layouts that can.

    Args:
        layout: As configured.
        model: Architecture.
        sequence_length: Tokens of a sample.
        global_batch_size: Samples of a step.
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
        global_batch_size=global_batch_size,
        micro_batch_size=micro_batch_size,
    )
    found = reasons(layout, world_size=world_size)
    if not found:
        return
    sizes = [world_size] if is_fixed else range(world_size, 0, -1)
    candidates = _nearest(layout, world_size, sizes)
    near = [one for one in candidates if not reasons(one, world_size=one.num_ranks)]
    shown = " or ".join(f"layout.dp={one.dp} layout.tp={one.tp}" for one in near[:_SHOWN])
    raise ConfigError(
        "this layout cannot work: " + "; ".join(found),
        where=f"layout {describe(layout)} on {world_size} ranks",
        fix=f"Nearest that do: {shown}." if near else "Change the batch or the model.",
    )


def describe(layout: Layout) -> str:
    """In a few words, e.g. "dp 4, tp 2, zero 3"."""
    words = [f"dp {layout.dp or 'auto'}", f"tp {layout.tp}", f"zero {layout.zero}"]
    return ", ".join(words + [f"shard {layout.shard}"] * (layout.shard > 0 and layout.zero > 0))


def _reasons(
    layout: Layout,
    *,
    model: ModelConfig,
    sequence_length: int,
    global_batch_size: int,
    micro_batch_size: int,
    world_size: int,
) -> list[str]:
    """Why a layout cannot work, one sentence each."""
    found = []
    if layout.dp and layout.dp * layout.tp != world_size:
        found.append(
            f"dp {layout.dp} x tp {layout.tp} are {layout.dp * layout.tp} ranks, there are {world_size}"
        )
    elif world_size % layout.tp:
        found.append(f"{world_size} ranks are not a multiple of tp {layout.tp}")
    concrete = layout.over(world_size)
    if global_batch_size % (micro_batch_size * concrete.dp):
        found.append(
            f"global_batch_size {global_batch_size} is not a multiple of micro_batch_size {micro_batch_size}"
            f" x dp {concrete.dp}"
        )
    if layout.zero and layout.shard and concrete.dp % layout.shard:
        found.append(f"dp {concrete.dp} is not a multiple of shard {layout.shard}")
    if layout.shard and not layout.zero:
        found.append("shard has no effect with zero 0")
    return found + [reason.rstrip(".") for reason in tensor_reasons(model, layout.tp, sequence_length)]


def _nearest(layout: Layout, world_size: int, sizes: Sequence[int]) -> Iterator[Layout]:
    """Other layouts over so many ranks, the nearest first."""
    degrees = range(1, world_size + 1)
    wanted = layout.over(world_size)

    def distance(pair: tuple[int, int]) -> float:
        return abs(math.log2(pair[0] / wanted.dp)) + abs(math.log2(pair[1] / wanted.tp))

    pairs = [(dp, tp) for dp, tp in itertools.product(degrees, degrees) if dp * tp in sizes]
    for dp, tp in sorted(pairs, key=distance):
        yield Layout(dp=dp, tp=tp, zero=layout.zero)
