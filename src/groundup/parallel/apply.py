"""Applies the parallelism of a layout to a model, in the one order that works."""

import contextlib
from collections.abc import Callable

import torch

from groundup.models import Model
from groundup.parallel.activation_checkpointing import Recompute, apply_activation_checkpointing
from groundup.parallel.compile import compile_layers
from groundup.parallel.context_parallel import apply_context_parallel
from groundup.parallel.fsdp import apply_fsdp
from groundup.parallel.mesh import ParallelMesh
from groundup.parallel.pipeline_parallel import Pipeline
from groundup.parallel.tensor_parallel import apply_tensor_parallel


def parallelize(
    model: Model,
    mesh: ParallelMesh,
    *,
    recompute: Recompute,
    compile: bool,  # noqa: A002  # the setting's name
    precision: Callable[[], contextlib.AbstractContextManager[None]],
    trains: bool = True,
    adapt: Callable[[Model], None] | None = None,
) -> Pipeline | None:
    """Parallelizes a model over the ranks of a run, in place.

    Args:
        model: On meta, or with the same weights on all ranks; left with this rank's part.
        mesh: Of the run.
        recompute: Activation checkpointing.
        compile: Whether to compile each layer.
        precision: Makes the context of a stage's forward pass.
        trains: Whether gradients are to be averaged over replicas; without, each has weights of its own.
        adapt: Changes what tensor parallelism has left of the layers: adds adapters, or makes them
            multiply in fp8.

    Returns:
        This rank's stages; None without pipeline parallelism.
    """
    device_mesh, layout = mesh.device_mesh, mesh.layout
    # First: the others apply to the layers that are left.
    pipeline = Pipeline(model, mesh, precision) if layout.pp > 1 else None
    if device_mesh is not None and layout.tp > 1:
        apply_tensor_parallel(model, model.config, device_mesh["tp"])
    if adapt:
        adapt(model)
    parts = list(pipeline.parts.values()) if pipeline else [model]
    if mesh.context is not None:
        for part in parts:
            apply_context_parallel(part, mesh.context)
    # Before compiling, so that the compiler sees it.
    apply_activation_checkpointing(model, recompute)
    if compile:
        compile_layers(model, mesh.device)
    if trains and device_mesh is not None and mesh.num_replicas > 1:
        apply_fsdp(parts, layout, device_mesh)  # last: it gathers what compiled layers compute with
    return pipeline


def materialize(model: Model, pipeline: Pipeline | None, device: torch.device) -> None:
    """Allocates this rank's part of each parameter, without values, and ties what was tied.

    So no rank ever holds a whole model that it shares with others.

    Args:
        model: On meta, after ``parallelize``.
        pipeline: What ``parallelize`` returned.
        device: Of the rank.
    """
    for part in pipeline.parts.values() if pipeline else [model]:
        part.to_empty(device=device)  # part by part, for FSDP has to learn of the new memory of each
    has_both_ends = model.embed is not None and model.head is not None
    if model.config.tied_embedding and has_both_ends and not (pipeline and pipeline.tied_head):
        model.tie_weights()
