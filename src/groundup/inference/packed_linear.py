"""Linear layers whose weights lie in memory as oneDNN's kernels read them, for decoding on a CPU.

PyTorch hands plain weights to kernels that read them at half of the speed or less when there are few tokens
(docs/LOG.md has the measurements). The operators are those that ``torch.compile`` puts into frozen graphs.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_TOKENS = 32
"""For which the layout is chosen; it is the best one, or near it, for 1 to 256."""


class PackedLinear(nn.Module):
    """A linear layer without gradients; the weight is copied into another layout.

    Args:
        weight: [out, in], on a CPU.
        bias: [out], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _TOKENS)
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether this processor and this PyTorch have the kernels."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    operators = torch.ops.mkldnn
    if not (hasattr(operators, "_reorder_linear_weight") and hasattr(operators, "_linear_pointwise")):
        return False
    if dtype == torch.bfloat16:
        return bool(operators._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(operators._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def sharing_weights(model: nn.Module) -> nn.Module:
    """Returns a copy of the model whose modules can be replaced; the weights are the same."""
    kept: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, kept)


def pack_layers(model: nn.Module, pack: Callable[[Tensor, Tensor | None], nn.Module]) -> None:
    """Replaces the linear parts of a model's layers, one after the other; the head is left out.

    Args:
        model: Changed in place.
        pack: Makes another linear layer of weight and bias.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and child is not getattr(model, "head", None):
                setattr(module, name, pack(child.weight, child.bias))
