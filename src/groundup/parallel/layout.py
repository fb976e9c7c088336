"""What a layout is."""

import dataclasses
from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive


@config
class PipelineConfig:
    """How the micro-batches of a step pass through the stages of a pipeline.

    Attributes:
        schedule: ``1f1b`` (Narayanan et al. 2019, arXiv:1806.03377), ``interleaved`` 1F1B with several stages
            a rank (2021, arXiv:2104.04473), or ``gpipe`` (Huang et al. 2018, arXiv:1811.06965).
        stages_per_rank: Of the interleaved schedule, 0 for 2; the others have 1.
        layers: Layers of each stage from the first to the last; empty to even out their costs, with
            embedding and head counted.
    """

    schedule: Literal["1f1b", "interleaved", "gpipe"] = "1f1b"
    stages_per_rank: NotNegative = 0
    layers: tuple[Positive, ...] = ()


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
        reduce_dtype: In which data-parallel ranks add up their gradients: ``bf16`` sends half the bytes, and
            rounds each gradient to 8 bits; they are kept in fp32 either way.
    """

    dp: NotNegative = 0
    tp: Positive = 1
    pp: Positive = 1
    cp: Positive = 1
    zero: Literal[0, 1, 2, 3] = 0
    shard: NotNegative = 0
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
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


def describe(layout: Layout) -> str:
    """In a few words, e.g. "dp 4, tp 2, zero 3"."""
    words = [f"dp {layout.dp or 'auto'}"]
    words += [f"{name} {getattr(layout, name)}" for name in ("cp", "tp", "pp") if getattr(layout, name) > 1]
    words += [layout.pipeline.schedule] * (layout.pp > 1)
    words += [f"zero {layout.zero}"] * (layout.zero > 0)
    return ", ".join(words + [f"shard {layout.shard}"] * (layout.shard > 0 and layout.zero > 0))
