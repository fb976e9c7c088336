"""GELU by its tanh approximation, quicker than PyTorch's kernels on a CPU in bf16.

0.5 (1 + tanh(z / 2)) is sigmoid(z), which costs a quarter of a tanh. The derivative is computed along with
the value, in fp32 and in blocks that stay in the caches, and kept in place of the input: the backward pass is
one product. Both are rounded to bf16 at the end alone, as PyTorch's are.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu

_LINEAR = math.sqrt(8 / math.pi)
_CUBIC = 0.044715 * _LINEAR
"""z = _LINEAR x + _CUBIC x^3 (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
_BLOCK = 1 << 17
"""Numbers that a thread takes at a time."""


_SCRATCH = 3


def scratch_bytes(num_values: int) -> int:
    """Returns the bytes that a CPU's forward pass takes beside its input and what it keeps."""
    return 4 * _SCRATCH * min(_block(), num_values)


def gelu_tanh(x: Tensor) -> Tensor:
    """Returns ``gelu(x, approximate="tanh")``, by passes of our own where a CPU trains in bf16."""
    quick = x.device.type == "cpu" and x.dtype == torch.bfloat16 and x.requires_grad
    if not quick or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return gelu(x, approximate="tanh")
    y: Tensor = _GeluTanh.apply(x)
    return y


def _block() -> int:
    return _BLOCK * torch.get_num_threads()


class _GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        y, slope = torch.empty_like(x), torch.empty_like(x)
        size = _block()
        scratch = torch.empty(_SCRATCH, min(size, x.numel()), dtype=torch.float32)
        for x_C, y_C, slope_C in zip(*(whole.view(-1).split(size) for whole in (x, y, slope)), strict=True):
            wide_C, z_C, sigmoid_C = scratch[:, : len(x_C)]
            wide_C.copy_(x_C)
            torch.mul(wide_C, wide_C, out=z_C).mul_(_CUBIC).add_(_LINEAR).mul_(wide_C)
            torch.sigmoid(z_C, out=sigmoid_C)
            z_C.add_(wide_C, alpha=-2 / 3 * _LINEAR)  # now a third of x dz/dx
            y_C.copy_(wide_C.mul_(sigmoid_C))
            torch.ops.aten.sigmoid_backward(z_C, sigmoid_C, grad_input=z_C)
            slope_C.copy_(sigmoid_C.add_(z_C, alpha=3))
        ctx.save_for_backward(slope)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        slope: Tensor = ctx.saved_tensors[0]
        return dy * slope
