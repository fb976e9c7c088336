"""Data parallelism: gradients averaged, and optimizer state, gradients and weights shared (ZeRO), by FSDP2.

Without ZeRO the weights are repeated along the mesh: FSDP2's hybrid sharding with shards of one rank. So
there is one engine for all stages.
"""

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from groundup.models import Model
from groundup.parallel.layout import Layout


def shard_over_data(model: Model, layout: Layout, mesh: DeviceMesh) -> None:
    """Spreads a model over the data-parallel ranks, in place; its weights are the same on all of them.

    Args:
        model: With initial or loaded weights.
        layout: Worked out (``Layout.over``).
        mesh: With the axes "replicate" and "shard".
    """
    hybrid = layout.shard < layout.dp
    over = mesh["replicate", "shard"] if hybrid else mesh["shard"]
    for layer in model.layers.values():
        fully_shard(layer, mesh=over, reshard_after_forward=layout.zero == 3)
    # The root holds the embedding and the head, whose weight the loss uses after the forward pass.
    fully_shard(model, mesh=over, reshard_after_forward=False)


def synchronise_gradients(model: nn.Module, layout: Layout, *, is_last: bool) -> None:
    """Says whether the coming backward pass is to reduce gradients over ranks.

    Up to ZeRO 1 only the last micro-batch's does; from ZeRO 2 on each, so that no rank holds them whole.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last or layout.zero >= 2)


@contextlib.contextmanager
def left_sharded(model: nn.Module) -> Iterator[None]:
    """After the block, weights that a forward pass without backward has gathered are let go again."""
    yield
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
