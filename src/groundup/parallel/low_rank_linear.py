"""Linear layers with a low-rank adapter (LoRA; arXiv:2106.09685), under tensor parallelism too.

How tensor parallelism has cut a weight W tells how A and B are cut, so that a rank computes the part of
s B A x that belongs to its part of W x.

Shapes: R rank, I inputs, O outputs, B batch, T tokens.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import linear

_TOKENS = 1  # the dimension of an activation that sequence parallelism cuts


class LowRankLinear(nn.Linear):
    """A linear layer whose weight and bias are frozen, and its adapter."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float
    lora_dropout: float

    def forward(self, x_BTI: Tensor) -> Tensor:
        """[B, T, I] -> [B, T, O]."""
        y_BTO = _summed(self.product(x_BTI))
        if self.training and self.lora_dropout:
            x_BTI = drop(x_BTI, self.lora_dropout)
        low_BTR = _summed(linear(x_BTI, self.lora_a))
        return y_BTO + linear(low_BTR * self.scale, self.lora_b)

    product = nn.Linear.forward  # what the layer computes without its adapter


def _summed(x: Tensor) -> Tensor:
    """Sums what ranks with a part of the inputs each have a term of, and leaves each its tokens."""
    if isinstance(x, DTensor) and any(placement.is_partial() for placement in x.placements):
        return x.redistribute(placements=[Shard(_TOKENS)])
    return x


def add_adapter(layer: nn.Linear, *, rank: int, scale: float, dropout: float) -> None:
    """Makes a layer one with an adapter without values: after tensor parallelism and before FSDP.

    The hooks that tensor parallelism has put on the layer stay.
    """
    outputs, inputs = layer.weight.shape
    rows = isinstance(layer.weight, DTensor) and layer.weight.placements == (Shard(0),)
    columns = isinstance(layer.weight, DTensor) and layer.weight.placements == (Shard(1),)
    layer.__class__ = LowRankLinear
    assert isinstance(layer, LowRankLinear), "the class was set"
    layer.lora_a = _parameter((rank, inputs), layer.weight, Shard(1) if columns else Replicate())
    layer.lora_b = _parameter((outputs, rank), layer.weight, Shard(0) if rows else Replicate())
    layer.scale = scale
    layer.lora_dropout = dropout


@contextlib.contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Lets a model compute what it would without its adapters within the block."""
    layers = [module for module in model.modules() if isinstance(module, LowRankLinear)]
    scales = [layer.scale for layer in layers]
    for layer in layers:
        layer.scale = 0.0
    try:
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scale = scale


def _parameter(shape: tuple[int, int], like: Tensor, placement: Placement) -> nn.Parameter:
    device = like.device
    value = torch.empty(shape, device=device)
    if isinstance(like, DTensor):
        value = distribute_tensor(value, like.device_mesh, [placement], src_data_rank=None)
    return nn.Parameter(value)
