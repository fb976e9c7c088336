"""Linear layers whose products run in fp8 on a GPU, at twice the rate of bf16 at best.

Weights and activations are rounded to e4m3, gradients to e5m2 (Micikevicius et al. 2022, arXiv:2209.05433),
each tensor as a whole scaled by its own largest number: the "hybrid" format with the "tensorwise" recipe of
Megatron-LM. Only what a product reads is rounded. Weights, sums, the stream between layers and the head keep
their formats. What the backward pass reads is kept in 8 bits.

Shapes: M tokens, I inputs, O outputs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from groundup.models import Model, ModelConfig
from groundup.parallel.device import Precision

_MULTIPLE = 16
"""All sizes of a product in fp8 are multiples of it: a rule of the tensor cores' library."""


def require_float8(model: ModelConfig, *, tp: int, tokens: int) -> None:
    """Refuses a run whose products cannot run in fp8.

    Args:
        model: Architecture.
        tp: Ranks that share each layer.
        tokens: Of one micro-batch on one rank.

    Raises:
        ValueError: They cannot; says why.
    """
    if tp > 1:
        raise ValueError("precision fp8 needs layout.tp 1: layers that ranks share multiply in 16 bits")
    sizes: Mapping[str, int] = {
        "model.hidden_size": model.hidden_size,
        "model.ffn_size": model.ffn_size,
        "model's queries": model.num_heads * model.head_dim,
        "model's keys": model.num_kv_heads * model.head_dim,
        "micro_batch_size x data.sequence_length / layout.cp": tokens,
    }
    for name, size in sizes.items():
        if size % _MULTIPLE:
            raise ValueError(f"precision fp8 needs multiples of {_MULTIPLE}; {name} is {size}")


def changes_for(precision: Precision) -> Callable[[Model], None] | None:
    """Returns what makes a model that trains multiply in a format; None where autocast alone does."""
    return use_float8 if precision.name == "fp8" else None


def use_float8(model: Model) -> None:
    """Makes the linear layers of a model's transformer layers multiply in fp8, in place.

    Their parameters stay, and so do the hooks on them; so a checkpoint does not show it.
    """
    for layer in model.layers.values():
        for module in layer.modules():
            if type(module) is nn.Linear:
                module.__class__ = Float8Linear


class Float8Linear(nn.Linear):
    """A linear layer in fp8.

    Other numbers of tokens than multiples of 16, as of prompts, run as in any linear layer.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O] in bf16."""
        x_MI = x.flatten(0, -2)
        if len(x_MI) % _MULTIPLE:
            return nn.Linear.forward(self, x)
        with torch.autocast(x.device.type, enabled=False):  # products in fp8 are not its own
            y_MO: Tensor = _Float8Product.apply(x_MI, self.weight, self.bias)
        return y_MO.view(*x.shape[:-1], -1)


class _Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        x_MI8, x_scale = _rounded(x_MI, torch.float8_e4m3fn)
        weight_OI8, weight_scale = _rounded(weight_OI, torch.float8_e4m3fn)
        ctx.save_for_backward(x_MI8, x_scale, weight_OI8, weight_scale)
        bias_O = None if bias_O is None else bias_O.to(torch.bfloat16)
        # Sums of the forward pass alone may be rounded on the way, as is usual: gradients are summed in fp32.
        return _product(x_MI8, weight_OI8.T, x_scale, weight_scale, bias=bias_O, use_fast_accum=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MO: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x_MI8, x_scale, weight_OI8, weight_scale = ctx.saved_tensors
        dy_MO8, dy_scale = _rounded(dy_MO, torch.float8_e5m2)
        dx_MI = _product(dy_MO8, _by_columns(weight_OI8), dy_scale, weight_scale)
        dweight_OI = _product(dy_MO8.T.contiguous(), _by_columns(x_MI8), dy_scale, x_scale)
        return dx_MI, dweight_OI, dy_MO.sum(0) if ctx.needs_input_grad[2] else None


def _rounded(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns numbers in fp8 whose largest is the format's, and the scale by which they were divided."""
    largest = torch.finfo(dtype).max
    scale = x.abs().amax().float().clamp_min(torch.finfo(torch.float32).tiny * largest) / largest
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


def _by_columns(matrix: Tensor) -> Tensor:
    """The same matrix in the order in which fp8 products read their right one."""
    return matrix.T.contiguous().T


def _product(left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, **options: Any) -> Tensor:
    return torch._scaled_mm(
        left, right, scale_a=left_scale, scale_b=right_scale, out_dtype=torch.bfloat16, **options
    )
