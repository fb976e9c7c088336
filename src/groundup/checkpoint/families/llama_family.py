"""Llama, with Mistral and Qwen2, in the formats of Hugging Face and Megatron-LM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.families import config_values as value
from groundup.checkpoint.families.family import (
    Family,
    HuggingFaceTable,
    MegatronTable,
    require_fixed,
    unsupported,
)
from groundup.checkpoint.families.llama_rope import (
    read_rope,
    read_rope_args,
    require_all_rotated,
    rope_args,
    rope_json,
    why_not_legacy,
)
from groundup.checkpoint.families.name_rules import NameRule
from groundup.core.log import logger
from groundup.models.llama import LlamaConfig

_FIXED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
}
_DEFAULT_WINDOW = 4096  # of Mistral and Qwen2 where config.json has none, in transformers 5.23.0
_QWEN2_FULL_LAYERS = 28  # before those with a window, where it has no max_window_layers

NAMES = (
    NameRule("model.embed_tokens.weight", ("embed.tokens.weight",)),
    NameRule("model.layers.*.input_layernorm.weight", ("layers.*.attention_norm.weight",)),
    NameRule("model.layers.*.self_attn.q_proj.weight", ("layers.*.attention.wq.weight",)),
    NameRule("model.layers.*.self_attn.k_proj.weight", ("layers.*.attention.wk.weight",)),
    NameRule("model.layers.*.self_attn.v_proj.weight", ("layers.*.attention.wv.weight",)),
    NameRule("model.layers.*.self_attn.q_proj.bias", ("layers.*.attention.wq.bias",)),  # of Qwen2
    NameRule("model.layers.*.self_attn.k_proj.bias", ("layers.*.attention.wk.bias",)),
    NameRule("model.layers.*.self_attn.v_proj.bias", ("layers.*.attention.wv.bias",)),
    NameRule("model.layers.*.self_attn.o_proj.weight", ("layers.*.attention.wo.weight",)),
    NameRule("model.layers.*.post_attention_layernorm.weight", ("layers.*.mlp_norm.weight",)),
    NameRule("model.layers.*.mlp.gate_proj.weight", ("layers.*.mlp.w1.weight",)),
    NameRule("model.layers.*.mlp.down_proj.weight", ("layers.*.mlp.w2.weight",)),
    NameRule("model.layers.*.mlp.up_proj.weight", ("layers.*.mlp.w3.weight",)),
    NameRule("model.norm.weight", ("norm.weight",)),
    NameRule("lm_head.weight", ("head.weight",)),
)


def _to_json(config: LlamaConfig) -> dict[str, Any]:
    qwen2 = {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": config.num_layers,
    }
    return {
        **(qwen2 if config.qkv_bias else {**_FIXED, "model_type": "llama"}),
        "max_position_embeddings": config.max_sequence_length,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        **rope_json(config),
        "attention_dropout": config.attention_dropout,
    }


def _from_json(theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
    require_fixed(theirs, _FIXED, path)
    require_all_rotated(theirs, path)
    head_dim = theirs["hidden_size"] // theirs["num_attention_heads"]
    if theirs.get("head_dim") not in (None, head_dim):
        raise unsupported(path, "head_dim", theirs["head_dim"], f"{head_dim} (hidden_size / heads)")
    heads = theirs["num_attention_heads"]
    if theirs["model_type"] == "llama":
        kv_heads = theirs.get("num_key_value_heads")
    else:  # where the key is missing, Mistral has 8 and Qwen2 32: better refused
        kv_heads = theirs["num_key_value_heads"]
    return {
        "kind": "llama",
        "vocab_size": theirs["vocab_size"],
        "max_sequence_length": _longest_exact(theirs, path),
        "num_layers": theirs["num_hidden_layers"],
        "hidden_size": theirs["hidden_size"],
        "num_heads": heads,
        "num_kv_heads": kv_heads or heads,
        "ffn_size": theirs["intermediate_size"],
        **read_rope(theirs, path),
        "qkv_bias": theirs["model_type"] == "qwen2",
        "tied_embedding": theirs.get("tie_word_embeddings", False),
        "attention_dropout": theirs.get("attention_dropout", 0.0),
        "norm_eps": theirs.get("rms_norm_eps", 1e-6),
        "init_std": theirs.get("initializer_range", 0.02),
    }


def _longest_exact(theirs: Mapping[str, Any], path: Path) -> int:
    """Tokens up to which a model with a sliding window, which ours has not, is the same without."""
    longest: int = theirs["max_position_embeddings"]
    window = _window(theirs)
    if window is not None and (type(window) is not int or window < 1):
        raise unsupported(path, "sliding_window", window, "null, or a number of tokens")
    if window is None or window >= longest:
        return longest
    logger.warning(
        "%s: sliding_window = %d is less than max_position_embeddings = %d: max_sequence_length becomes %d;"
        " up to there the window hides nothing, beyond it the model would need one, which is not supported",
        path,
        window,
        longest,
        window,
    )
    return window


def _window(theirs: Mapping[str, Any]) -> Any:
    """The sliding window of any layer, in tokens with the one that attends; None: all see all."""
    if theirs["model_type"] == "mistral":
        return theirs.get("sliding_window", _DEFAULT_WINDOW)
    if theirs["model_type"] != "qwen2" or not theirs.get("use_sliding_window", False):
        return None
    if theirs.get("layer_types"):
        slides = "sliding_attention" in theirs["layer_types"]
    else:
        slides = theirs["num_hidden_layers"] > theirs.get("max_window_layers", _QWEN2_FULL_LAYERS)
    return theirs.get("sliding_window", _DEFAULT_WINDOW) if slides else None


def _to_args(config: LlamaConfig) -> dict[str, Any]:
    return {
        **rope_args(config),
        "add_bias_linear": False,
        "add_qkv_bias": config.qkv_bias,
        "swiglu": True,
        "bias_swiglu_fusion": True,
        "bias_gelu_fusion": False,
        "normalization": "RMSNorm",
    }


def _from_args(args: Mapping[str, Any], where: Path) -> dict[str, Any]:
    if args.get("rotary_percent", 1.0) not in (1.0, None):
        raise unsupported(where, "rotary_percent", args["rotary_percent"], "1.0 in a Llama")
    return {
        **grouped_heads(args),
        **read_rope_args(args, where),
        "qkv_bias": bool(args.get("add_qkv_bias", False)),
    }


def grouped_heads(args: Mapping[str, Any]) -> dict[str, Any]:
    """``num_kv_heads`` of Megatron-LM's arguments."""
    groups = args.get("num_query_groups") if args.get("group_query_attention") else None
    return {"num_kv_heads": groups or args["num_attention_heads"]}


_SIZES = ("vocab_size", "max_position_embeddings", "hidden_size", "num_attention_heads", "intermediate_size")
LLAMA_FAMILY = Family(
    config=LlamaConfig,
    huggingface=HuggingFaceTable(
        model_types=("llama", "mistral", "qwen2"),
        names=NAMES,
        architecture=lambda config: "Qwen2ForCausalLM" if config.qkv_bias else "LlamaForCausalLM",
        to_json=_to_json,
        from_json=_from_json,
        required=(*_SIZES, "num_hidden_layers"),
        values={
            **dict.fromkeys(_SIZES, value.COUNT),
            "num_hidden_layers": value.LAYERS,
            **dict.fromkeys(("num_key_value_heads", "head_dim"), value.COUNT.or_null()),
            "rms_norm_eps": value.POSITIVE,
            "rope_theta": value.POSITIVE.or_null(),
            "initializer_range": value.NOT_NEGATIVE,
            "attention_dropout": value.PROBABILITY,
            **dict.fromkeys(
                ("tie_word_embeddings", "use_sliding_window", "attention_bias", "mlp_bias"), value.SWITCH
            ),
            "max_window_layers": value.WHOLE,
            "layer_types": value.LIST.or_null(),
            "hidden_act": value.WORD,
        },
        multiples=(
            ("hidden_size", "num_attention_heads"),
            ("num_attention_heads", "num_key_value_heads"),
        ),
    ),
    megatron=MegatronTable(
        mlp_inputs=("layers.*.mlp.w1", "layers.*.mlp.w3"),
        rms_norm=True,
        linear_biases=False,
        to_args=_to_args,
        from_args=_from_args,
        why_not_legacy=why_not_legacy,
    ),
)
