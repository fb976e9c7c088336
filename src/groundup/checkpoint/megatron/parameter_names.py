"""Megatron-LM's names of parameters: those of megatron.core, to which the older ones are translated.

Sources: Megatron-LM 992da75 (2023-06) and d98e8a6 (2026-08). A rule's three or two tensors of ours lie
interleaved in theirs (``layout.py``), not simply joined as in Hugging Face's models.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from torch import Tensor

from groundup.checkpoint.huggingface.names import NameRule
from groundup.models import ModelConfig
from groundup.models.llama import LlamaConfig

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


def rules(config: ModelConfig) -> tuple[NameRule, ...]:
    """A rule for each tensor of theirs in models of a kind; ``*`` stands for a layer number."""
    gated = isinstance(config, LlamaConfig)
    fc1 = ("layers.*.mlp.w1", "layers.*.mlp.w3") if gated else ("layers.*.mlp.w1",)
    return tuple(
        NameRule(f"{theirs}.{kind}", tuple(f"{name}.{kind}" for name in ours))
        for theirs, ours in (*_MODULES, (_FC1, fc1))
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
