"""Brings a model of any format to the memory of several ranks, each of which reads its part alone."""

import contextlib
from collections.abc import Callable

import torch

from groundup.checkpoint.lazy import LazyModel, LoadedModel, require_finite, rounded, shared_fields
from groundup.checkpoint.logical_tensors import logical_shapes
from groundup.checkpoint.native.shards import checkpoint_name, local_shard_of
from groundup.models import FP32, WeightDtypes, build_model
from groundup.parallel.activation_checkpointing import Recompute
from groundup.parallel.apply import materialize, parallelize
from groundup.parallel.dtensor import local
from groundup.parallel.mesh import ParallelMesh
from groundup.parallel.parallel_model import ParallelModel


def load_over_ranks(
    stored: LazyModel,
    mesh: ParallelMesh,
    *,
    precision: Callable[[], contextlib.AbstractContextManager[None]],
    dtypes: WeightDtypes = FP32,
) -> LoadedModel:
    """Loads a model for forward passes: in evaluation mode, over the layout of a mesh.

    Args:
        stored: The model on disk.
        mesh: Of the ranks; data-parallel ones have a copy each.
        precision: Makes the context of a pipeline stage's forward pass.
        dtypes: Of the weights.

    Returns:
        The model as a ``ParallelModel``.

    Raises:
        CheckpointError: Weights of this rank are not finite, or not in their dtype.
    """
    model = build_model(stored.config, device="meta", dtypes=dtypes).eval()
    pipeline = parallelize(
        model, mesh, recompute=Recompute(), compile=False, precision=precision, trains=False
    )
    materialize(model, pipeline, mesh.device)
    shapes = logical_shapes(stored.config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            stored_as = checkpoint_name(name, stored.config)
            shard = local_shard_of(stored_as, parameter, stored.config)
            assert shard.metadata.shape == shapes[stored_as], f"{name} is cut from its logical shape"
            shard.padding.zero_()
            chunk = shard.metadata.chunk
            if chunk.size:
                tensor = rounded(stored_as, stored, parameter.dtype)
                shard.values.copy_(tensor.part(chunk.offset, chunk.shape))
    require_finite(((name, local(value.detach())) for name, value in model.named_parameters()), stored.source)
    return LoadedModel(model=ParallelModel(model, mesh, pipeline).eval(), **shared_fields(stored))
