"""Layouts: degrees of each kind of parallelism, and the layers and ranks of pipeline stages."""

import dataclasses
from collections.abc import Sequence
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


def describe_layout(layout: Layout) -> str:
    """In a few words, e.g. "dp 4, tp 2, zero 3"."""
    words = [f"dp {layout.dp or 'auto'}"]
    words += [f"{name} {getattr(layout, name)}" for name in ("cp", "tp", "pp") if getattr(layout, name) > 1]
    words += [layout.pipeline.schedule] * (layout.pp > 1)
    words += [f"zero {layout.zero}"] * (layout.zero > 0)
    return ", ".join(words + [f"shard {layout.shard}"] * (layout.shard > 0 and layout.zero > 0))


def stages_per_rank(pipeline: PipelineConfig) -> int:
    """Stages that each rank has under a schedule: one, or two or more where they are interleaved."""
    return pipeline.stages_per_rank or 2 if pipeline.schedule == "interleaved" else 1


def stages_of_rank(pipeline: PipelineConfig, pp: int, rank: int) -> list[int]:
    """Numbers of a rank's stages: every pp-th."""
    return [rank + pp * turn for turn in range(stages_per_rank(pipeline))]


def stage_reasons(layout: Layout, *, num_layers: int, num_micro_batches: int) -> list[str]:
    """Why a model's layers or a step's micro-batches cannot be pipelined so; a sentence each, or none.

    Args:
        layout: Settings.
        num_layers: Of the model.
        num_micro_batches: Of a rank's share of a step.
    """
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
    """Layers of each stage, one at least, so that the dearest stage is as cheap as can be.

    Where several splits are as good, the earliest stages get the layers: their activations wait longest, but
    the last stage also holds the logits.

    Args:
        num_layers: To divide.
        num_stages: At most ``num_layers``.
        layer_cost: Of one layer, in any unit.
        first_cost: Of what the first stage has besides: the embedding.
        last_cost: Of what the last stage has besides: final norm, head and loss.
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
    """The layers of each stage, from the number of them."""
    ends = [sum(counts[: stage + 1]) for stage in range(len(counts))]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
