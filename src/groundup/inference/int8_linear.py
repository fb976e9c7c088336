"""Linear layers with weights of 8 bits, on CPUs that sum up such products (VNNI).

A row of weights has one scale, and whole numbers from -127 to 127. Activations keep 16 bits: each token's are
multiples of a step of its own, written in two digits to the base 256. One product in whole numbers takes the
digits of all tokens, so that what a token gets does not depend on the others (docs/LOG.md has measurements).

Shapes: M tokens, K in, N out.
"""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from groundup.core.errors import ConfigError, MachineError
from groundup.inference.packed_linear import Activation

_LARGEST = 127
_BASE = 256
_ZERO = 128
"""Digits are stored with this added: oneDNN's kernels for unsigned numbers are the quick ones."""

_TINY = torch.finfo(torch.float32).tiny

_ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "none": lambda y: y,
        "gelu": gelu,
        "gelu_tanh": functools.partial(gelu, approximate="tanh"),
        "silu": silu,
    }
)


class Int8Linear(nn.Module):
    """A linear layer without gradients, whose weight is rounded to 8 bits.

    Args:
        weight: [out, in], on a CPU.
        bias: [out], or None.
        activation: Of what comes out.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> None:
        super().__init__()
        values_NK, self._scale_N = rounded_rows(weight.detach())
        self._weight = torch.ops.onednn.qlinear_prepack(values_NK, None)
        self._zero_N = torch.zeros_like(self._scale_N, dtype=torch.int32)
        self._bias = None if bias is None else bias.detach().float()
        # Zero in both digits, and a half, so that cutting rounds.
        self._half = torch.tensor(_ZERO * _BASE + _ZERO + 0.5)
        self._activate = _ACTIVATIONS[activation]

    def forward(self, x: Tensor, *, plus: Tensor | None = None, times: Tensor | None = None) -> Tensor:
        """[..., in] -> [..., out]; then the activation, and ``times`` and ``plus``."""
        x_MK = x.flatten(0, -2).float()
        largest_M1 = torch.linalg.vector_norm(x_MK, torch.inf, -1, keepdim=True)
        step_M1 = largest_M1.div_(_LARGEST * _BASE).clamp_min_(_TINY)
        whole_MK = torch.addcdiv(self._half, x_MK, step_M1).to(torch.int32)
        y_2MN = torch.ops.onednn.qlinear_pointwise(
            torch.cat((whole_MK, whole_MK >> 8)).to(torch.uint8),
            *(1.0, _ZERO, self._weight, self._scale_N, self._zero_N),
            *(None, 1.0, 0, torch.float32, "none", [], ""),
        )
        low_MN, high_MN = y_2MN.chunk(2)
        y_MN = low_MN.add_(high_MN, alpha=_BASE)
        y_MN = y_MN.mul_(step_M1) if self._bias is None else torch.addcmul(self._bias, y_MN, step_M1)
        y = self._activate(y_MN.to(x.dtype).view(*x.shape[:-1], -1))
        y = y if times is None else y * times
        return y if plus is None else y + plus


def rounded_rows(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Returns weights as whole numbers [N, K], and the scale of each row [N]."""
    values_NK = weight_NK.float()
    scale_N = values_NK.abs().amax(1).div_(_LARGEST).clamp_min_(_TINY)
    return values_NK.div(scale_N.unsqueeze(1)).round_().to(torch.int8), scale_N


def has_int8(device: torch.device) -> bool:
    """Returns whether this processor and this PyTorch have the kernels."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.cpu._is_vnni_supported()) and hasattr(torch.ops.onednn, "qlinear_pointwise")


def require_int8(device: torch.device, num_ranks: int) -> None:
    """Refuses weights of 8 bits where there are no kernels for them.

    Raises:
        ConfigError: The model is spread over ranks.
        MachineError: The device has none.
    """
    if num_ranks > 1:
        raise ConfigError(
            "weights of 8 bits are for a model in one process: ranks share those of training",
            where="--dtype int8",
            fix="Leave out layout.tp and layout.pp, or choose bfloat16.",
        )
    if not has_int8(device):
        what = f"this processor ({device.type}) has no" if device.type == "cpu" else f"{device.type} gets no"
        raise MachineError(
            f"{what} kernels for weights of 8 bits: they need a CPU with VNNI",
            where="--dtype int8",
            fix="Choose bfloat16, or --device cpu on such a machine.",
        )
