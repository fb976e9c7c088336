"""Layouts: degrees of each kind of parallelism, and the layers and ranks of pipeline stages."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive


@config
class PipelineConfig:
    """The schedule and the stages of a pipeline.

    Attributes:
        schedule: ``1f1b`` (Narayanan et al. 2019, arXiv:1806.03377), ``interleaved`` 1F1B with several stages
            a rank (2021, arXiv:2104.04473), or ``gpipe`` (Huang et al. 2018, arXiv:1811.06965).
        stages_per_rank: Under the interleaved schedule, where 0 means 2; others have 1.
        layers: Number of layers of each stage; empty to balance their costs, embedding and head included.
    """

    schedule: Literal["1f1b", "interleaved", "gpipe"] = "1f1b"
    stages_per_rank: NotNegative = 0
    layers: tuple[Positive, ...] = ()


@config
class Layout:
    """Degrees of parallelism of a run over pp x dp x cp x tp ranks.

    Attributes:
        dp: Data-parallel ranks, each with its share of every global batch; 0 for as many as were launched.
        tp: Ranks that share each layer (tensor parallelism, with sequence parallelism between).
        pp: Ranks that each have some of the layers (pipeline parallelism).
        cp: Ranks that share the tokens of each sequence (context parallelism).
        zero: What is sharded over data-parallel ranks: 0 nothing, 1 optimizer state, 2 also gradients,
            3 also weights (ZeRO; Rajbhandari et al. 2019, arXiv:1910.02054).
        shard: Data-parallel ranks that share one replica, under ``zero`` 1 to 3; 0 for all of them. Fewer is
            hybrid sharding: sharded within, say, a machine and replicated across machines.
        reduce_dtype: Of the sum of gradients over data-parallel ranks: ``bf16`` sends half the bytes, and
            rounds each gradient to 8 bits; they are kept in fp32 either way.
        pipeline: Schedule and stages under ``pp``.
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
        """Number of ranks, the least where ``dp`` is 0."""
        return max(1, self.dp) * self.ranks_of_a_copy

    @property
    def ranks_of_a_copy(self) -> int:
        """Ranks that work on the same samples together: pp x cp x tp."""
        return self.pp * self.cp * self.tp

    def over(self, world_size: int) -> "Layout":
        """Resolves ``dp`` and ``shard`` for so many ranks."""
        dp = self.dp or max(1, world_size // self.ranks_of_a_copy)
        shard = 1 if self.zero == 0 else self.shard or dp
        return dataclasses.replace(self, dp=dp, shard=shard)


def describe_layout(layout: Layout) -> str:
    """Describes a layout in a few words, e.g. "dp 4, tp 2, zero 3"."""
    words = [f"dp {layout.dp or 'auto'}"]
    words += [f"{name} {getattr(layout, name)}" for name in ("cp", "tp", "pp") if getattr(layout, name) > 1]
    words += [layout.pipeline.schedule] * (layout.pp > 1)
    words += [f"zero {layout.zero}"] * (layout.zero > 0)
    return ", ".join(words + [f"shard {layout.shard}"] * (layout.shard > 0 and layout.zero > 0))


def stages_per_rank(pipeline: PipelineConfig) -> int:
    """Returns the number of stages of each rank under a schedule."""
    return pipeline.stages_per_rank or 2 if pipeline.schedule == "interleaved" else 1


def stages_of_rank(pipeline: PipelineConfig, pp: int, rank: int) -> list[int]:
    """Returns the numbers of a rank's stages: every pp-th."""
    return [rank + pp * turn for turn in range(stages_per_rank(pipeline))]


def stage_reasons(layout: Layout, *, num_layers: int, num_micro_batches: int) -> list[str]:
    """Returns why a model's layers or a rank's micro-batches do not fit the pipeline, a sentence each."""
    pp, pipeline = layout.pp, layout.pipeline
    if pp == 1:
        return ["pipeline.layers has no effect with pp 1"] * bool(pipeline.layers)
    found = []
    per_rank = stages_per_rank(pipeline)
    num_stages = pp * per_rank
    product = f"pp {pp}" + f" x {per_rank} stages a rank" * (per_rank > 1)
    if pipeline.stages_per_rank and pipeline.stages_per_rank != per_rank:
        found.append(f"pipeline.schedule {pipeline.schedule} has {per_rank} stages a rank")
    if pipeline.schedule == "interleaved" and per_rank < 2:
        found.append(f"pipeline.schedule {pipeline.schedule} needs 2 stages a rank or more")
    if num_layers < num_stages:
        found.append(f"num_layers {num_layers} are fewer than the stages of {product}")
    if pipeline.layers:
        if len(pipeline.layers) != num_stages:
            found.append(f"pipeline.layers names {len(pipeline.layers)} stages, {product} has {num_stages}")
        if sum(pipeline.layers) != num_layers:
            found.append(f"pipeline.layers adds up to {sum(pipeline.layers)}, num_layers is {num_layers}")
        if min(pipeline.layers) < 1:
            found.append("pipeline.layers gives a stage no layer")
    if num_micro_batches < num_stages and pipeline.schedule == "1f1b":
        found.append(f"{num_micro_batches} micro-batches a rank are fewer than the {num_stages} stages")
    rounds = max(1, num_micro_batches // pp)
    if pipeline.schedule == "interleaved" and (num_micro_batches < pp or num_micro_batches % rounds):
        found.append(f"{num_micro_batches} micro-batches a rank are not a multiple of pp {pp}")
    return found


def split_layers(
    num_layers: int, num_stages: int, *, layer_cost: float, first_cost: float, last_cost: float
) -> list[int]:
    """Returns the number of layers of each stage, minimising the cost of the most expensive stage.

    Each stage has at least one. Where several splits are as good, the earliest stages get the layers: their
    activations wait longest, but the last stage also holds the logits.

    Args:
        num_layers: Of the model.
        num_stages: At most ``num_layers``.
        layer_cost: Of one layer, in any unit.
        first_cost: Of the embedding, in the first stage.
        last_cost: Of final norm, head and loss, in the last stage.
    """
    extra = [0.0] * num_stages
    extra[0] += first_cost
    extra[-1] += last_cost
    counts = [1] * num_stages
    for _ in range(num_layers - num_stages):
        cheapest = min(range(num_stages), key=lambda stage: (counts[stage] + 1) * layer_cost + extra[stage])
        counts[cheapest] += 1
    return counts


def ranges(counts: Sequence[int]) -> list[range]:
    """Returns the layers of each stage from their numbers."""
    ends = [sum(counts[: stage + 1]) for stage in range(len(counts))]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
