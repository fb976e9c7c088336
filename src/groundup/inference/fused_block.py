"""A model's layers with fewer operators, for decoding, where each costs as much as a small matrix.

Queries, keys and values come from one matrix; activations and sums with the residual are done by the products
before them, where their kernels can (docs/LOG.md has measurements).

Shapes: B batch, T tokens, D model, N heads, K kv heads, H head dim.
"""

from typing import Any

import torch
from torch import Tensor, nn

from groundup.inference.int8_linear import Int8Linear
from groundup.inference.packed_linear import Activation, PackedLinear
from groundup.inference.plain_linear import PlainLinear
from groundup.models import Model
from groundup.models.gelu import gelu_tanh
from groundup.models.kv_cache import KeyValueCache
from groundup.models.rope import rotate

DecodingLinear = type[PackedLinear | Int8Linear | PlainLinear]


class FusedBlock(nn.Module):
    """One layer, without gradients; the same function as the layer that it replaces.

    Args:
        block: Of a GPT-2, Llama or StableLM.
        linear: What its linear layers become.
    """

    def __init__(self, block: Any, linear: DecodingLinear) -> None:
        super().__init__()
        attention, mlp = block.attention, block.mlp
        self.head_dim = attention.head_dim
        parts = (attention.wq, attention.wk, attention.wv)
        self.num_heads = [len(part.weight) // self.head_dim for part in parts]
        bias = None if parts[0].bias is None else torch.cat([part.bias.detach() for part in parts])
        self.attention_norm = block.attention_norm
        self.wqkv = linear(torch.cat([part.weight.detach() for part in parts]), bias)
        self.wo = linear(attention.wo.weight, attention.wo.bias)
        self.mlp_norm = block.mlp_norm
        self.w3 = linear(mlp.w3.weight, mlp.w3.bias) if hasattr(mlp, "w3") else None
        activation: Activation = "silu"
        if self.w3 is None:
            activation = "gelu_tanh" if mlp.activation is gelu_tanh else "gelu"
        self.w1 = linear(mlp.w1.weight, mlp.w1.bias, activation)
        self.w2 = linear(mlp.w2.weight, mlp.w2.bias)

    def forward(
        self,
        x_BTD: Tensor,
        angles: tuple[Tensor, Tensor] | None = None,
        *,
        cache: KeyValueCache,
        layer: int,
        mask: object = None,  # the cache knows what each token sees
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        heads_BXTH = self.wqkv(self.attention_norm(x_BTD)).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q_BNTH, k_BKTH, v_BKTH = heads_BXTH.split(self.num_heads, 1)
        if angles is not None:
            rotated_BXTH = rotate(heads_BXTH[:, : sum(self.num_heads[:2])], angles)
            q_BNTH, k_BKTH = rotated_BXTH.split(self.num_heads[:2], 1)
        y_BNTH = cache.attend(layer, q_BNTH, k_BKTH, v_BKTH)
        x_BTD = self.wo(y_BNTH.transpose(1, 2).flatten(-2), plus=x_BTD)
        normed_BTD = self.mlp_norm(x_BTD)
        hidden_BTF = self.w1(normed_BTD)
        if self.w3 is not None:
            hidden_BTF = self.w3(normed_BTD, times=hidden_BTF)
        return self.w2(hidden_BTF, plus=x_BTD)  # type: ignore[no-any-return]


def fuse_layers(model: nn.Module, linear: DecodingLinear) -> None:
    """Replaces a model's layers, one after the other; of one with adapters, its plain linear parts only."""
    if not isinstance(model, Model):
        return
    for name, block in list(model.layers.items()):
        linears = [part for part in block.modules() if isinstance(part, nn.Linear)]
        if all(type(part) is nn.Linear for part in linears):
            model.layers[name] = FusedBlock(block, linear)
            continue
        for module in list(block.modules()):
            for child_name, child in module.named_children():
                if type(child) is nn.Linear:
                    setattr(module, child_name, linear(child.weight, child.bias))
