"""Data parallelism by FSDP2, which averages gradients and shards state, gradients and weights (ZeRO).

Without ZeRO the weights are repeated along the mesh: FSDP2's hybrid sharding with shards of one rank. So
there is one engine for all stages.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from groundup.models import Model
from groundup.parallel.layout import Layout

_REDUCE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def apply_fsdp(parts: Sequence[Model], layout: Layout, mesh: DeviceMesh) -> None:
    """Applies FSDP2 to the parts of a model that a rank has, in place.

    Args:
        parts: The whole model, or stages; on meta, or with the same weights on all data-parallel ranks.
        layout: Resolved by ``Layout.over``.
        mesh: With the axes "replicate" and "shard".
    """
    over = mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]
    policy = MixedPrecisionPolicy(reduce_dtype=_REDUCE_DTYPES[layout.reduce_dtype])
    for part in parts:
        for layer in part.layers.values():
            fully_shard(layer, mesh=over, reshard_after_forward=layout.zero == 3, mp_policy=policy)
        # The root holds the embedding and the head, whose weight the loss uses after the forward pass.
        fully_shard(part, mesh=over, reshard_after_forward=False, mp_policy=policy)


def set_gradient_sync(model: nn.Module, layout: Layout, *, is_last: bool) -> None:
    """Sets whether the coming backward pass reduces gradients over ranks.

    Up to ZeRO 1 only the last micro-batch's does; from ZeRO 2 on each, so that no rank holds them whole.
    Pipeline schedules set it themselves: their last does.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last or layout.zero >= 2)
        # Up to ZeRO 2 weights stay gathered from one micro-batch to the next.
        model.set_reshard_after_backward(is_last or layout.zero == 3)


@contextlib.contextmanager
def without_gathering(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Reshards after the block the weights that a forward pass without backward has gathered."""
    yield
    for part in parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
