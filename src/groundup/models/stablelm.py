"""StableLM (Stability AI 2023): rotary positions on a part of each head, LayerNorm, SwiGLU, grouped queries.

As released: huggingface.co/stabilityai/stablelm-3b-4e1t. So is a GPT of Megatron-LM's with
``--position-embedding-type rope --swiglu`` and no other normalization; its linear layers all have biases,
unless they are switched off.

Shapes: B batch, T tokens, D model, F ffn, V padded vocabulary.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import dropout, silu

from groundup.core.config import config
from groundup.core.config_class import NotNegativeFloat, PositiveFloat, Probability, Size
from groundup.core.vocabulary import padded_vocab_size
from groundup.models.attention import Attention
from groundup.models.kv_cache import KeyValueCache
from groundup.models.masks import Mask, Masks
from groundup.models.rope import NoRopeScaling, Rope, RopeScaling
from groundup.models.spec import Axes

AXES: Axes = {
    "embed.tokens.weight": ("vocab", "embed"),
    "layers.*.attention_norm.weight": ("embed",),
    "layers.*.attention_norm.bias": ("embed",),
    "layers.*.attention.wq.weight": ("heads", "embed"),
    "layers.*.attention.wq.bias": ("heads",),
    "layers.*.attention.wk.weight": ("kv_heads", "embed"),
    "layers.*.attention.wk.bias": ("kv_heads",),
    "layers.*.attention.wv.weight": ("kv_heads", "embed"),
    "layers.*.attention.wv.bias": ("kv_heads",),
    "layers.*.attention.wo.weight": ("embed", "heads"),
    "layers.*.attention.wo.bias": ("embed",),
    "layers.*.mlp_norm.weight": ("embed",),
    "layers.*.mlp_norm.bias": ("embed",),
    "layers.*.mlp.w1.weight": ("ffn", "embed"),
    "layers.*.mlp.w1.bias": ("ffn",),
    "layers.*.mlp.w2.weight": ("embed", "ffn"),
    "layers.*.mlp.w2.bias": ("embed",),
    "layers.*.mlp.w3.weight": ("ffn", "embed"),
    "layers.*.mlp.w3.bias": ("ffn",),
    "norm.weight": ("embed",),
    "norm.bias": ("embed",),
    "head.weight": ("vocab", "embed"),
}


@config
class StableLMConfig:
    """Shape and options of a StableLM.

    Attributes:
        vocab_size: True vocabulary; the tables are padded to a multiple of 128.
        max_sequence_length: Longest sequence that the model is meant for.
        num_layers: Transformer blocks.
        hidden_size: D.
        num_heads: Attention heads; divides ``hidden_size``.
        num_kv_heads: Key/value heads; divides ``num_heads``.
        ffn_size: F, usually 8/3 D rounded up.
        rope_base: Base of the rotary frequencies ("theta").
        rope_scaling: What is done to them for longer contexts.
        rotary_fraction: Share of each head's dimensions, its first, that are rotated; an even number of them.
        linear_bias: Which linear layers have biases: none, queries, keys and values, or all.
        tied_embedding: The output head is the token embedding.
        dropout: After each residual branch, while training.
        attention_dropout: Of attention weights, while training.
        norm_eps: Added to the variance in layer norms.
        init_std: Standard deviation of initial weights.
    """

    kind: Literal["stablelm"] = "stablelm"
    vocab_size: Size
    max_sequence_length: Size
    num_layers: Size
    hidden_size: Size
    num_heads: Size
    num_kv_heads: Size
    ffn_size: Size
    rope_base: PositiveFloat = 10000.0
    rope_scaling: RopeScaling = NoRopeScaling()
    rotary_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    linear_bias: Literal["none", "qkv", "all"] = "none"
    tied_embedding: bool = False
    dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    norm_eps: NotNegativeFloat = 1e-5
    init_std: NotNegativeFloat = 0.02

    def __post_init__(self) -> None:
        """Checks the sizes against each other."""
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.rotary_dim % 2 or not self.rotary_dim:
            raise ValueError(
                f"rotary positions turn an even number of a head's dimensions, not {self.rotary_dim}"
                f" (rotary_fraction {self.rotary_fraction} of {self.head_dim})"
            )

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotated, rounded down as by Megatron-LM and transformers."""
        return int(self.head_dim * self.rotary_fraction)


class Embedding(nn.Module):
    """The token table."""

    def __init__(self, config: StableLMConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(padded_vocab_size(config.vocab_size), config.hidden_size)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Embeddings [B, T, D]."""
        return self.tokens(tokens_BT)  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202): w2(silu(w1 x) * w3 x)."""

    def __init__(self, config: StableLMConfig) -> None:
        super().__init__()
        bias = config.linear_bias == "all"
        self.w1 = nn.Linear(config.hidden_size, config.ffn_size, bias=bias)
        self.w2 = nn.Linear(config.ffn_size, config.hidden_size, bias=bias)
        self.w3 = nn.Linear(config.hidden_size, config.ffn_size, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return self.w2(silu(self.w1(x_BTD)) * self.w3(x_BTD))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: StableLMConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.attention = Attention(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            bias=config.linear_bias != "none",
            output_bias=config.linear_bias == "all",
            dropout=config.attention_dropout,
        )
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = Mlp(config)
        self.dropout = config.dropout

    def forward(
        self,
        x_BTD: Tensor,
        angles: tuple[Tensor, Tensor],
        *,
        mask: Mask,
        cache: KeyValueCache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        attended_BTD = self.attention(
            self.attention_norm(x_BTD), angles=angles, mask=mask, cache=cache, layer=layer
        )
        x_BTD = x_BTD + dropout(attended_BTD, self.dropout, self.training)
        return x_BTD + dropout(self.mlp(self.mlp_norm(x_BTD)), self.dropout, self.training)


class StableLM(nn.Module):
    """The whole model; ``forward`` ends before the head, which the loss and ``lm_head`` apply.

    Without some of its layers, or with None for an end, it is a pipeline stage, and takes and returns hidden
    states [B, T, D] in place of what it lacks.
    """

    def __init__(self, config: StableLMConfig) -> None:
        super().__init__()
        self.config = config
        self.rope = Rope(config.rotary_dim, config.rope_base, config.rope_scaling)
        self.embed: Embedding | None = Embedding(config)
        self.masks: nn.Module = Masks(head_dim=config.head_dim, dropout=config.attention_dropout)
        self.layers = nn.ModuleDict({str(i): Block(config) for i in range(config.num_layers)})
        self.norm: nn.LayerNorm | None = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.head: nn.Linear | None = nn.Linear(
            config.hidden_size, padded_vocab_size(config.vocab_size), bias=False
        )
        self.tie_weights()

    def tie_weights(self) -> None:
        """Shares the token embedding with the head if configured; to be repeated after ``to_empty``."""
        if self.config.tied_embedding:
            assert self.head is not None and self.embed is not None, "a part of a model ties nothing"
            self.head.weight = self.embed.tokens.weight

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        documents_BT: Tensor | None = None,
        mask: Mask | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Returns the final hidden states [B, T, D].

        Args:
            tokens_BT: Ids.
            positions_BT: Position of each token in its document; by default counted from the row's first.
            documents_BT: Number of each token's document within its row, not decreasing along it; attention
                stays within documents. By default a row is one document.
            mask: What each token attends to, in place of the documents' mask.
            cache: Keeps keys and values of earlier tokens, and knows which of them each new one sees;
                ``positions_BT`` are then needed.
        """
        assert documents_BT is None or cache is None, "a cache keeps texts apart by itself"
        if positions_BT is None:
            assert cache is None, "who keeps a cache knows the positions"
            positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).unsqueeze(0)
        angles = self.rope.angles(positions_BT)
        x_BTD = tokens_BT
        if self.embed is not None:
            x_BTD = self.embed(tokens_BT)
        mask = mask or self.masks(documents_BT, like=x_BTD)
        for name, block in self.layers.items():
            x_BTD = block(x_BTD, angles, mask=mask, cache=cache, layer=int(name))
        return x_BTD if self.norm is None else self.norm(x_BTD)
