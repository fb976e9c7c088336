"""The techniques of a layout, in the one order in which they go together."""

import contextlib
from collections.abc import Callable

from groundup.models import Model
from groundup.parallel.activation_checkpointing import Recompute, recompute_layers
from groundup.parallel.compile import compile_layers
from groundup.parallel.context_parallel import apply_context
from groundup.parallel.fsdp import shard_over_data
from groundup.parallel.mesh import Team
from groundup.parallel.pipeline_parallel import Pipeline
from groundup.parallel.tensor_parallel import parallelize_tensors


def parallelize(
    model: Model,
    team: Team,
    *,
    recompute: Recompute,
    compile: bool,  # noqa: A002  # the setting's name
    precision: Callable[[], contextlib.AbstractContextManager[None]],
) -> Pipeline | None:
    """Spreads a model over the ranks of a run, in place.

    Args:
        model: On meta, or with weights that are the same on all ranks; left with what this rank has of it.
        team: This rank among the others.
        recompute: What layers compute again in the backward pass.
        compile: Compile each layer.
        precision: Makes the context of a stage's forward pass.

    Returns:
        How micro-batches pass through the stages of a pipeline; None where each rank has all layers.
    """
    mesh, layout = team.mesh, team.layout
    # First: the others go by what is left of the model.
    pipeline = Pipeline(model, team, precision) if layout.pp > 1 else None
    if mesh is not None and layout.tp > 1:
        parallelize_tensors(model, model.config, mesh["tp"])  # each layer over its tensor-parallel ranks
    parts = list(pipeline.parts.values()) if pipeline else [model]
    if team.context is not None:
        for part in parts:
            apply_context(part, team.context)
    recompute_layers(model, recompute)  # within what is compiled, so that the compiler knows of it
    if compile:
        compile_layers(model, team.device)
    if mesh is not None and team.num_copies > 1:
        shard_over_data(parts, layout, mesh)  # last: it gathers what compiled layers compute with
    return pipeline
