"""GPT-2 (Radford et al. 2019): learned positions, pre-LayerNorm, GELU, biases, tied embedding.

Shapes: B batch, T tokens, D model, F ffn, V padded vocabulary.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu

from groundup.core.config import config
from groundup.core.config_class import NotNegativeFloat, Probability, Size
from groundup.core.vocabulary import padded_vocab_size
from groundup.models.attention import Attention
from groundup.models.gelu import gelu_tanh
from groundup.models.kv_cache import KeyValueCache
from groundup.models.masks import Mask, Masks
from groundup.models.spec import Axes

AXES: Axes = {
    "embed.tokens.weight": ("vocab", "embed"),
    "embed.positions.weight": ("position", "embed"),
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
    "norm.weight": ("embed",),
    "norm.bias": ("embed",),
    "head.weight": ("vocab", "embed"),
}


@config
class GPT2Config:
    """Shape and options of a GPT-2.

    Attributes:
        vocab_size: True vocabulary; the tables are padded to a multiple of 128.
        max_sequence_length: Number of learned positions.
        num_layers: Transformer blocks.
        hidden_size: D.
        num_heads: Attention heads; divides ``hidden_size``.
        ffn_size: F, usually 4 D.
        activation: GELU by its tanh approximation (GPT-2, Megatron's fused kernel) or by erf.
        bias: Biases in linear layers and layer norms.
        tied_embedding: The output head is the token embedding.
        dropout: After the embedding and each residual branch, while training.
        attention_dropout: Of attention weights, while training.
        norm_eps: Added to the variance in layer norms.
        init_std: Standard deviation of initial weights.
    """

    kind: Literal["gpt2"] = "gpt2"
    vocab_size: Size
    max_sequence_length: Size
    num_layers: Size
    hidden_size: Size
    num_heads: Size
    ffn_size: Size
    activation: Literal["gelu_tanh", "gelu"] = "gelu_tanh"
    bias: bool = True
    tied_embedding: bool = True
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

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads: as many as query heads."""
        return self.num_heads

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads


class Embedding(nn.Module):
    """Token and position tables, summed."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(padded_vocab_size(config.vocab_size), config.hidden_size)
        self.positions = nn.Embedding(config.max_sequence_length, config.hidden_size)

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor) -> Tensor:
        """Embeddings [B, T, D]."""
        return self.tokens(tokens_BT) + self.positions(positions_BT)  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden_size, config.ffn_size, bias=config.bias)
        self.w2 = nn.Linear(config.ffn_size, config.hidden_size, bias=config.bias)
        self.activation = gelu_tanh if config.activation == "gelu_tanh" else gelu

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return self.w2(self.activation(self.w1(x_BTD)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.bias)
        self.attention = Attention(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            bias=config.bias,
            output_bias=config.bias,
            dropout=config.attention_dropout,
        )
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.bias)
        self.mlp = Mlp(config)
        self.dropout = config.dropout

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask: Mask,
        cache: KeyValueCache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        attended_BTD = self.attention(self.attention_norm(x_BTD), mask=mask, cache=cache, layer=layer)
        x_BTD = x_BTD + dropout(attended_BTD, self.dropout, self.training)
        return x_BTD + dropout(self.mlp(self.mlp_norm(x_BTD)), self.dropout, self.training)


class GPT2(nn.Module):
    """The whole model; ``forward`` ends before the head, which the loss and ``lm_head`` apply.

    Without some of its layers, or with None for an end, it is a pipeline stage, and takes and returns hidden
    states [B, T, D] in place of what it lacks.
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.embed: Embedding | None = Embedding(config)
        self.masks: nn.Module = Masks(head_dim=config.head_dim, dropout=config.attention_dropout)
        self.layers = nn.ModuleDict({str(i): Block(config) for i in range(config.num_layers)})
        self.norm: nn.LayerNorm | None = nn.LayerNorm(
            config.hidden_size, eps=config.norm_eps, bias=config.bias
        )
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
        x_BTD = tokens_BT
        if self.embed is not None:
            x_BTD = dropout(self.embed(tokens_BT, positions_BT), self.config.dropout, self.training)
        mask = mask or self.masks(documents_BT, like=x_BTD)
        for name, block in self.layers.items():
            x_BTD = block(x_BTD, mask=mask, cache=cache, layer=int(name))
        return x_BTD if self.norm is None else self.norm(x_BTD)
