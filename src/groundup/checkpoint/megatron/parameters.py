"""Megatron-LM's tensors: their names, and how they are fused and divided among tensor-parallel ranks.

Names are those of megatron.core, to which the older ones are translated. Sources: Megatron-LM 992da75
(2023-06) and d98e8a6 (2026-08).

Queries, keys and values are one tensor, ordered by head in a way that changed with the checkpoint's
version; the gate and the up projection of a SwiGLU are one tensor too, of which each rank holds the two
halves of its part. Rows: G groups (key/value heads), N query heads, H head dim.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from groundup.checkpoint.families import family_of
from groundup.checkpoint.families.name_rules import NameRule
from groundup.models import ModelConfig, axes_of
from groundup.models.spec import dimensions_of

Naming = Literal["legacy", "core", "core-fused"]
"""``legacy``: megatron.model, until 2024; ``core``: megatron.core; ``core-fused``: its Transformer Engine
form, where a layer norm is part of the linear layer that follows it."""

HEAD = "output_layer.weight"
EMBEDDING = "embedding.word_embeddings.weight"

_LAYER = "decoder.layers.*"
_QKV = ("layers.*.attention.wq", "layers.*.attention.wk", "layers.*.attention.wv")
_MODULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("embedding.word_embeddings", ("embed.tokens",)),
    ("embedding.position_embeddings", ("embed.positions",)),
    (f"{_LAYER}.input_layernorm", ("layers.*.attention_norm",)),
    (f"{_LAYER}.self_attention.linear_qkv", _QKV),
    (f"{_LAYER}.self_attention.linear_proj", ("layers.*.attention.wo",)),
    (f"{_LAYER}.pre_mlp_layernorm", ("layers.*.mlp_norm",)),
    (f"{_LAYER}.mlp.linear_fc2", ("layers.*.mlp.w2",)),
    ("decoder.final_layernorm", ("norm",)),
    ("output_layer", ("head",)),
)
_FC1 = f"{_LAYER}.mlp.linear_fc1"
_FROM_LEGACY = (
    (r"language_model\.(?:embedding\.)?(word|position)_embeddings\.", r"embedding.\1_embeddings."),
    (r"language_model\.(?:encoder|transformer)\.", "decoder."),
    (r"language_model\.output_layer\.", "output_layer."),
    (r"word_embeddings_for_head\.", "output_layer."),
    (r"(layers\.\d+)\.attention\.", r"\1.self_attention."),
    (r"self_attention\.query_key_value\.", "self_attention.linear_qkv."),
    (r"self_attention\.dense\.", "self_attention.linear_proj."),
    (r"input_norm\.", "input_layernorm."),
    (r"post_attention_(?:layer)?norm\.", "pre_mlp_layernorm."),
    (r"mlp\.dense_h_to_4h\.", "mlp.linear_fc1."),
    (r"mlp\.dense_4h_to_h\.", "mlp.linear_fc2."),
    (r"final_norm\.", "final_layernorm."),
)
_FROM_FUSED = (
    (r"self_attention\.linear_qkv\.layer_norm_", "input_layernorm."),
    (r"mlp\.linear_fc1\.layer_norm_", "pre_mlp_layernorm."),
)
_TO_LEGACY = (
    (r"^embedding\.", "language_model.embedding."),
    (r"^decoder\.", "language_model.encoder."),
    (r"^output_layer\.", "language_model.output_layer."),
    (r"self_attention\.linear_qkv\.", "self_attention.query_key_value."),
    (r"self_attention\.linear_proj\.", "self_attention.dense."),
    (r"pre_mlp_layernorm\.", "post_attention_layernorm."),
    (r"mlp\.linear_fc1\.", "mlp.dense_h_to_4h."),
    (r"mlp\.linear_fc2\.", "mlp.dense_4h_to_h."),
)
_TO_LEGACY_RMS = (("input_layernorm", "input_norm"), ("attention_layernorm", "attention_norm"),
                  ("final_layernorm", "final_norm"))  # fmt: skip  # so since norms other than LayerNorm
_TO_FUSED = (
    (r"(\.\d+)\.input_layernorm\.", r"\1.self_attention.linear_qkv.layer_norm_"),
    (r"pre_mlp_layernorm\.", "mlp.linear_fc1.layer_norm_"),
)
_WITH_EXTRA_STATE = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
_IGNORED = ("_extra_state", "rotary_pos_emb.inv_freq", "rotary_emb.inv_freq")
_SPLIT_DIMENSIONS = ("vocab", "heads", "kv_heads", "ffn")
CURRENT_VERSION = 3.0


def rules(config: ModelConfig) -> tuple[NameRule, ...]:
    """A rule for each tensor of theirs in models of a kind; ``*`` stands for a layer number."""
    return tuple(
        NameRule(f"{theirs}.{kind}", tuple(f"{name}.{kind}" for name in ours))
        for theirs, ours in (*_MODULES, (_FC1, family_of(config).megatron.mlp_inputs))
        for kind in ("weight", "bias")
    )


def canonical_tensors(chunk: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of one part of a model by the names of megatron.core with separate layer norms.

    A copy of the embedding that serves as head is named as a head. What is no parameter is left out.
    """
    return {canonical_name(name): tensor for name, tensor in _flat(chunk) if not name.endswith(_IGNORED)}


def canonical_name(name: str) -> str:
    """A name of any naming as megatron.core has it, with separate layer norms."""
    name = name.removeprefix("module.")
    for pattern, replacement in (*_FROM_LEGACY, *_FROM_FUSED):
        name = re.sub(pattern, replacement, name)
    return name


def renamed(name: str, naming: Naming, *, rms_norm: bool) -> str:
    """A canonical name in one of their namings, flat."""
    replacements: tuple[tuple[str, str], ...] = ()
    if naming == "legacy":
        replacements = (*_TO_LEGACY, *(_TO_LEGACY_RMS if rms_norm else ()))
    elif naming == "core-fused":
        replacements = _TO_FUSED
    for pattern, replacement in replacements:
        name = re.sub(pattern, replacement, name)
    return name


def nested(flat: Mapping[str, Any], naming: Naming, *, tied: bool, last_stage: bool) -> dict[str, Any]:
    """A model's state as they save it: nested dicts for ``legacy``, flat with extra states for the others."""
    if naming != "legacy":
        found: dict[str, Any] = {}
        for name, tensor in flat.items():
            found[name] = tensor
            module = name.rpartition(".")[0]
            if name.endswith("weight") and module.endswith(_WITH_EXTRA_STATE):
                found[f"{module}._extra_state"] = None
        return {**found, **({"output_layer._extra_state": None} if last_stage else {})}
    model: dict[str, Any] = {}
    for name, tensor in flat.items():
        parts = name.split(".")
        if parts[1] == "output_layer" and tied:
            model["word_embeddings_for_head"] = {"weight": tensor}
        elif parts[1] == "encoder":
            model.setdefault("language_model", {}).setdefault("encoder", {})[".".join(parts[2:])] = tensor
        else:
            place = model
            for part in parts[:-1]:
                place = place.setdefault(part, {})
            place[parts[-1]] = tensor
    return model


def layer_of(name: str) -> int | None:
    """The layer number in a canonical name."""
    match = re.match(r"decoder\.layers\.(\d+)\.", name)
    return int(match[1]) if match else None


def with_layer(name: str, layer: int) -> str:
    """A canonical name with another layer number."""
    return re.sub(r"^decoder\.layers\.\d+\.", f"decoder.layers.{layer}.", name)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors by dotted path, in their order; values that are no tensors are no parameters."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, Tensor):
            yield f"{prefix}{key}", value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """How our tensors lie in theirs, for one model and one checkpoint version.

    Attributes:
        config: The model.
        version: 0: rows [3, N, H]; 1: [N, H, 3]; 2 and 3: [G, N / G + 2, H].
    """

    config: ModelConfig
    version: float = CURRENT_VERSION

    def unpack(self, rule: NameRule, theirs: Tensor) -> list[Tensor]:
        """The parts of ours in one rank's tensor."""
        if len(rule.ours) == 3:
            return self._unpack_qkv(theirs)
        return list(theirs.chunk(len(rule.ours)))

    def pack(self, rule: NameRule, ours: Sequence[Tensor]) -> Tensor:
        """One rank's tensor of its parts of ours, in the current version's layout."""
        assert self.version == CURRENT_VERSION, "older layouts are only read"
        if len(rule.ours) == 3:
            rest = ours[0].shape[1:]
            width = self.config.head_dim
            groups = ours[1].shape[0] // width
            query, key, value = (part.reshape(groups, -1, width, *rest) for part in ours)
            return torch.cat((query, key, value), dim=1).reshape(-1, *rest)
        return torch.cat(tuple(ours)) if len(ours) > 1 else ours[0]

    def _unpack_qkv(self, theirs: Tensor) -> list[Tensor]:
        rest, width = theirs.shape[1:], self.config.head_dim
        if self.version == 0:
            return [part.reshape(-1, *rest) for part in theirs.reshape(3, -1, *rest)]
        if self.version == 1:
            by_head = theirs.reshape(-1, width, 3, *rest)
            return [by_head[:, :, part].reshape(-1, *rest) for part in range(3)]
        heads = self.config.num_heads // self.config.num_kv_heads
        by_group = theirs.reshape(-1, heads + 2, width, *rest)
        parts = (by_group[:, :heads], by_group[:, heads], by_group[:, heads + 1])
        return [part.reshape(-1, *rest) for part in parts]


def split_dim(name: str, config: ModelConfig) -> int | None:
    """The dimension along which tensor-parallel ranks divide one of our parameters; None: each has it all."""
    for dim, dimension in enumerate(dimensions_of(axes_of(config), name)):
        if dimension in _SPLIT_DIMENSIONS:
            return dim
    return None


def fused_shape(
    rule: NameRule, shapes: Sequence[tuple[int, ...]], config: ModelConfig, tp: int
) -> tuple[int, ...]:
    """The shape of one rank's tensor of theirs, from the whole shapes of ours."""
    dim = split_dim(rule.ours[0], config)
    shape = [sum(shape[0] for shape in shapes), *shapes[0][1:]]
    if dim is not None:
        shape[dim] //= tp
    return tuple(shape)
