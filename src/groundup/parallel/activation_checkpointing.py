"""Activation checkpointing: the backward pass recomputes activations instead of keeping them.

``torch.utils.checkpoint`` does it, layer by layer (Chen et al. 2016, arXiv:1604.06174). Random numbers,
autocast and gradients are the same as without: only memory and time change.

A layer's ``forward`` is replaced, not the layer: parameters keep their names, and what is put around a
layer (torch.compile, FSDP) goes around the recomputation.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from groundup.core.config import config
from groundup.core.config_class import Positive
from groundup.models import Model

_PRODUCTS = {"aten::mm": 1, "aten::addmm": 2, "aten::_scaled_mm": 1}
"""Which argument of a product of tokens and weights has the weights."""
_SCATTERED_SUMS = frozenset({"_c10d_functional::reduce_scatter_tensor"})
_FUSED_ATTENTION = frozenset(
    {
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "torch_attn::_varlen_attn",
    }
)
"""Kernels that keep their output alone, no attention weights."""


@config
class Recompute:
    """Which activations layers keep for the backward pass; fewer cost time.

    Attributes:
        mode: ``none`` keeps all; ``selective`` the outputs of matrix products and of fused attention, so
            that attention weights, norms, activation functions and dropout are computed again; ``full``
            the layer's input only.
        every: Apply the mode to every so many-th layer from the first; the others keep all.
    """

    mode: Literal["none", "selective", "full"] = "none"
    every: Positive = 1

    def __post_init__(self) -> None:
        """Checks the settings against each other."""
        if self.mode == "none" and self.every != 1:
            raise ValueError(f"every {self.every} has no effect with mode none; set mode selective or full")


def apply_activation_checkpointing(model: Model, recompute: Recompute) -> None:
    """Makes layers recompute activations, in place; to be called before compiling and FSDP."""
    if recompute.mode == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if recompute.mode == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy(model))

    # Positional only: a layer's own arguments may have any name.
    def forward(module: nn.Module, /, *inputs: Any, **named: Any) -> Tensor:
        plain = functools.partial(type(module).forward, module)
        if not torch.is_grad_enabled():
            return plain(*inputs, **named)  # type: ignore[no-any-return]
        return checkpoint(plain, *inputs, **options, **named)  # type: ignore[no-any-return]

    for name, layer in model.layers.items():
        if int(name) % recompute.every == 0:
            layer.forward = MethodType(forward, layer)  # of the layer, so that a copy has its own


def _policy(model: Model) -> Callable[..., CheckpointPolicy]:
    """Returns which outputs of a layer's operations are kept under ``selective``.

    Not kept is the product that ends a layer, which no gradient needs, unless dropout follows: then only
    its product would have to be computed again, for the shape. Nor is a product of which each rank has a
    part of the sum: it is as long as all ranks' tokens, the scattered sum is kept in its place.
    """
    ffn_size, dropout = model.config.ffn_size, model.config.dropout
    # Kept random operations would not draw again, and what is drawn after them would differ.
    attention = frozenset() if model.config.attention_dropout else _FUSED_ATTENTION
    kept = _SCATTERED_SUMS | attention

    def policy(
        context: SelectiveCheckpointContext, operation: torch._ops.OpOverload, *inputs: Any, **named: Any
    ) -> CheckpointPolicy:
        name = operation.name()
        keep = name in kept
        if name in _PRODUCTS:
            matrix = inputs[_PRODUCTS[name]]
            ends_layer = matrix.shape[0] == ffn_size
            is_part = isinstance(matrix, DTensor) and Shard(0) in matrix.placements
            keep = not is_part and (dropout > 0 or not ends_layer)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return policy
