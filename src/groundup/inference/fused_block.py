"""A model's layers with fewer operators, for decoding, where each costs as much as a small matrix.

Queries, keys and values come from one matrix; activations and sums with the residual are done by the products
before them, where their kernels can (docs/LOG.md has measurements).

Shapes: M new tokens of all texts, D model, F ffn, X heads of queries, keys and values, H head dim.
"""

from typing import Any

import torch
from torch import Tensor, nn

from groundup.inference.int8_linear import Int8Linear
from groundup.inference.packed_linear import Activation, PackedLinear
from groundup.inference.paged_cache import PagedCache
from groundup.inference.plain_linear import PlainLinear
from groundup.models import Model
from groundup.models.gelu import gelu_tanh
from groundup.models.rope import rotate

DecodingLinear = type[PackedLinear | Int8Linear | PlainLinear]


class FusedBlock(nn.Module):
    """One layer, without gradients; the same function as the layer that it replaces.

    Its parts are called by ``forward``, for what PyTorch does for hooks around that takes time.

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
        x_1MD: Tensor,
        angles: tuple[Tensor, Tensor] | None = None,
        *,
        cache: PagedCache,
        layer: int,
        mask: object = None,  # the cache knows what each token sees
    ) -> Tensor:
        """[1, M, D] -> [1, M, D]."""
        num_tokens = x_1MD.shape[1]
        heads_MXH = self.wqkv.forward(self.attention_norm.forward(x_1MD)).view(num_tokens, -1, self.head_dim)
        q_MNH, k_MKH, v_MKH = heads_MXH.split(self.num_heads, 1)
        if angles is not None:
            heads_1XMH = heads_MXH[:, : sum(self.num_heads[:2])].transpose(0, 1).unsqueeze(0)
            rotated_MXH = rotate(heads_1XMH, angles)[0].transpose(0, 1)
            q_MNH, k_MKH = rotated_MXH.split(self.num_heads[:2], 1)
        y_MNH = cache.attend_tokens(layer, q_MNH, k_MKH, v_MKH)
        x_1MD = self.wo.forward(y_MNH.reshape(1, num_tokens, -1), plus=x_1MD)
        normed_1MD = self.mlp_norm.forward(x_1MD)
        hidden_1MF = self.w1.forward(normed_1MD)
        if self.w3 is not None:
            hidden_1MF = self.w3.forward(normed_1MD, times=hidden_1MF)
        return self.w2.forward(hidden_1MF, plus=x_1MD)


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
