"""Weights of 8 bits below adapters, in torchao's tensors: a quarter of the memory of fp32.

Each output has a scale, and its weights are rounded to a 127th of the largest. Products are of the
activations' dtype. Shapes: B batch, T tokens, I inputs, O outputs.
"""

import importlib.util
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from groundup.core.errors import ConfigError, MachineError
from groundup.core.log import logger
from groundup.core.progress import human_count
from groundup.parallel.low_rank_linear import LowRankLinear
from groundup.train.config import TrainConfig

_SETTING = "lora.base_weights=int8"


class Int8LowRankLinear(LowRankLinear):
    """A linear layer whose frozen weight has 8 bits, and its adapter."""

    def product(self, x_BTI: Tensor) -> Tensor:
        """[B, T, I] -> [B, T, O], in autocast's dtype where it is on; torchao's tensors do not look at it."""
        device = x_BTI.device.type
        if torch.is_autocast_enabled(device):
            x_BTI = x_BTI.to(torch.get_autocast_dtype(device))
        y_BTO: Tensor = _Product.apply(x_BTI, self.weight)
        return y_BTO if self.bias is None else y_BTO + self.bias.to(y_BTO.dtype)


class _Product(torch.autograd.Function):
    """The product with a weight that keeps its 8 bits alone; PyTorch would keep it as it was multiplied."""

    @staticmethod
    def forward(ctx: Any, x_BTI: Tensor, weight_OI: Tensor) -> Tensor:
        ctx.weight_OI = weight_OI
        return linear(x_BTI, weight_OI)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BTO: Tensor) -> tuple[Tensor | None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None
        return gradient_BTO @ ctx.weight_OI.dequantize().to(gradient_BTO.dtype), None


def require_int8_base(run: TrainConfig) -> None:
    """Refuses weights of 8 bits where there cannot be any.

    Raises:
        ConfigError: The run spreads the model over ranks, or compiles it.
        MachineError: torchao is not installed.
    """
    if run.layout.num_ranks > 1:
        raise ConfigError(
            "weights of 8 bits are not spread over ranks",
            where=_SETTING,
            fix="Train on one device, or leave lora.base_weights=float.",
        )
    if importlib.util.find_spec("torchao") is None:
        raise MachineError("needs torchao", where=_SETTING, fix="Type: pip install 'groundup[int8]'")


def round_base(model: nn.Module) -> None:
    """Rounds the weights of the layers that have adapters to 8 bits, in place, one after the other."""
    logging.disable(logging.WARNING)  # it tells of kernels that this does not use
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    finally:
        logging.disable(logging.NOTSET)
    layers = [module for module in model.modules() if type(module) is LowRankLinear]
    before = sum(layer.weight.nbytes for layer in layers)
    for layer in layers:
        # A linear layer alone is what torchao looks for.
        whole = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        whole.weight = nn.Parameter(layer.weight.detach(), requires_grad=False)
        quantize_(whole, Int8WeightOnlyConfig())
        layer.weight = whole.weight
        layer.__class__ = Int8LowRankLinear
    rounded: list[Any] = [layer.weight for layer in layers]
    after = sum(weight.qdata.nbytes + weight.scale.nbytes for weight in rounded)
    shown = human_count(after), human_count(before)
    logger.info("weights below adapters have 8 bits: %sB instead of %sB", *shown)


def as_float(weight: Tensor) -> Tensor:
    """Returns a weight as it is, or as its 8 bits say."""
    return weight.dequantize() if hasattr(weight, "qdata") else weight
