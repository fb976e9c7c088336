"""Which layers each stage of a pipeline has, and which stages each rank."""

from collections.abc import Sequence

from groundup.parallel.layout import Layout, PipelineConfig


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
