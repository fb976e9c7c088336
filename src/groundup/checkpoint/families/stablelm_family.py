"""StableLM in the formats of Hugging Face and Megatron-LM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.families import config_values as value
from groundup.checkpoint.families.family import Family, HuggingFaceTable, MegatronTable, require_fixed
from groundup.checkpoint.families.llama_family import NAMES, grouped_heads
from groundup.checkpoint.families.llama_rope import (
    read_rope,
    read_rope_args,
    read_rotary_fraction,
    rope_args,
    rope_json,
    why_not_legacy,
)
from groundup.checkpoint.families.name_rules import NameRule
from groundup.models.stablelm import StableLMConfig

_FIXED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "qk_layernorm": False,
    "use_parallel_residual": False,
    "hidden_dropout": 0.0,  # theirs falls behind the MLP alone, ours behind attention too
}
_FRACTION = 0.25  # where config.json has none
_NORM_BIASES = (
    NameRule("model.layers.*.input_layernorm.bias", ("layers.*.attention_norm.bias",)),
    NameRule("model.layers.*.post_attention_layernorm.bias", ("layers.*.mlp_norm.bias",)),
    NameRule("model.norm.bias", ("norm.bias",)),
)


def _to_json(config: StableLMConfig) -> dict[str, Any]:
    part = {"partial_rotary_factor": config.rotary_fraction}
    rope = rope_json(config)
    return {
        **_FIXED,
        "model_type": "stablelm",
        "max_position_embeddings": config.max_sequence_length,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "layer_norm_eps": config.norm_eps,
        "use_qkv_bias": config.linear_bias == "qkv",
        **rope,
        **part,
        "rope_parameters": {**rope["rope_parameters"], **part},
        "attention_dropout": config.attention_dropout,
    }


def _from_json(theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
    require_fixed(theirs, _FIXED, path)
    return {
        "kind": "stablelm",
        "vocab_size": theirs["vocab_size"],
        "max_sequence_length": theirs["max_position_embeddings"],
        "num_layers": theirs["num_hidden_layers"],
        "hidden_size": theirs["hidden_size"],
        "num_heads": theirs["num_attention_heads"],
        "num_kv_heads": theirs["num_key_value_heads"],
        "ffn_size": theirs["intermediate_size"],
        **read_rope(theirs, path),
        "rotary_fraction": read_rotary_fraction(theirs, path, default=_FRACTION),
        "linear_bias": "qkv" if theirs.get("use_qkv_bias", False) else "none",
        "tied_embedding": theirs.get("tie_word_embeddings", False),
        "attention_dropout": theirs.get("attention_dropout", 0.0),
        "norm_eps": theirs.get("layer_norm_eps", 1e-5),
        "init_std": theirs.get("initializer_range", 0.02),
    }


def _why_not(config: StableLMConfig) -> str | None:
    if config.linear_bias == "all":
        return "linear_bias is all, and no class of transformers has biases in all of these layers"
    return None


def _to_args(config: StableLMConfig) -> dict[str, Any]:
    return {
        **rope_args(config),
        "rotary_percent": config.rotary_fraction,
        "add_bias_linear": config.linear_bias == "all",
        "add_qkv_bias": config.linear_bias != "none",
        "swiglu": True,
        "bias_swiglu_fusion": True,
        "bias_gelu_fusion": False,
        "normalization": "LayerNorm",
    }


def _from_args(args: Mapping[str, Any], where: Path) -> dict[str, Any]:
    qkv = "qkv" if args.get("add_qkv_bias", False) else "none"
    return {
        **grouped_heads(args),
        **read_rope_args(args, where),
        "rotary_fraction": args.get("rotary_percent") or 1.0,
        "linear_bias": "all" if args.get("add_bias_linear", True) else qkv,
    }


_SIZES = ("vocab_size", "max_position_embeddings", "hidden_size", "num_attention_heads", "intermediate_size")
STABLELM_FAMILY = Family(
    config=StableLMConfig,
    huggingface=HuggingFaceTable(
        model_types=("stablelm",),
        names=(*NAMES, *_NORM_BIASES),
        architecture=lambda config: "StableLmForCausalLM",
        to_json=_to_json,
        from_json=_from_json,
        required=(*_SIZES, "num_hidden_layers", "num_key_value_heads"),
        values={
            **dict.fromkeys((*_SIZES, "num_key_value_heads"), value.COUNT),
            "num_hidden_layers": value.LAYERS,
            "layer_norm_eps": value.POSITIVE,
            "rope_theta": value.POSITIVE.or_null(),
            "initializer_range": value.NOT_NEGATIVE,
            "attention_dropout": value.PROBABILITY,
            **dict.fromkeys(
                ("tie_word_embeddings", "use_qkv_bias", "qk_layernorm", "use_parallel_residual"), value.SWITCH
            ),
            "hidden_act": value.WORD,
        },
        multiples=(
            ("hidden_size", "num_attention_heads"),
            ("num_attention_heads", "num_key_value_heads"),
        ),
        why_not=_why_not,
    ),
    megatron=MegatronTable(
        mlp_inputs=("layers.*.mlp.w1", "layers.*.mlp.w3"),
        rms_norm=False,
        linear_biases=False,
        to_args=_to_args,
        from_args=_from_args,
        why_not_legacy=why_not_legacy,
    ),
)
