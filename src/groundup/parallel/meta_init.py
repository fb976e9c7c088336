"""From a model on the meta device, already spread over ranks, to one with memory for what this rank has."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from groundup.models import Model
from groundup.parallel.pipeline_parallel import Pipeline


def materialize(model: Model, pipeline: Pipeline | None, device: torch.device) -> None:
    """Gives each parameter memory for this rank's part of it, with no values yet; ties what was tied.

    So no rank ever has a whole model that it shares with others.

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


def place(parameter: Tensor, value: Tensor) -> None:
    """Copies a whole value to this rank's part of a parameter; the other ranks have the same value."""
    if isinstance(parameter, DTensor):
        value = value.to(parameter.device)
        spread = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(spread.to_local())
    else:
        parameter.copy_(value)
