"""Linear layers whose weights lie in memory as oneDNN's kernels read them, for decoding on a CPU.

PyTorch hands plain weights to kernels that read them at half of the speed or less when there are few tokens
(docs/LOG.md has the measurements). The operators are those that ``torch.compile`` puts into frozen graphs.
"""

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

_TOKENS = 32
"""For which the layout is chosen; it is the best one, or near it, for 1 to 256."""


Activation = Literal["none", "gelu", "gelu_tanh", "silu"]

_ATTRIBUTES: Mapping[Activation, tuple[str, str]] = MappingProxyType(
    {"none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "silu": ("swish", "")}
)
"""How the kernels name what follows a product."""


class PackedLinear(nn.Module):
    """A linear layer without gradients; the weight is copied into another layout.

    Args:
        weight: [out, in], on a CPU.
        bias: [out], or None.
        activation: Of what comes out.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _TOKENS)
        self._bias = None if bias is None else bias.detach()
        self._activation = _ATTRIBUTES[activation]

    def forward(self, x: Tensor, *, plus: Tensor | None = None, times: Tensor | None = None) -> Tensor:
        """[..., in] -> [..., out]; without activation, one of ``plus`` and ``times`` can be joined to it."""
        y: Tensor
        if plus is None and times is None:
            name, algorithm = self._activation
            y = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, name, [], algorithm)
        else:
            other, how = (plus, "add") if times is None else (times, "mul")
            y = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, self._bias, how)
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
