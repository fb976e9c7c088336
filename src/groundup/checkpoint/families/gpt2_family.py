"""GPT-2 in the formats of Hugging Face and Megatron-LM."""

import dataclasses
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
from groundup.checkpoint.families.name_rules import NameRule
from groundup.core.errors import CheckpointError
from groundup.models.gpt2 import GPT2Config

_GELU = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "gelu_python": "gelu",
}
_FIXED: Mapping[str, Any] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


def _linear(theirs: str, *ours: str) -> tuple[NameRule, NameRule]:
    """A Conv1D layer: transposed weight, bias."""
    weights = tuple(f"{name}.weight" for name in ours)
    biases = tuple(f"{name}.bias" for name in ours)
    return NameRule(f"{theirs}.weight", weights, transposed=True), NameRule(f"{theirs}.bias", biases)


def _norm(theirs: str, ours: str) -> tuple[NameRule, NameRule]:
    return NameRule(f"{theirs}.weight", (f"{ours}.weight",)), NameRule(f"{theirs}.bias", (f"{ours}.bias",))


_QKV = ("layers.*.attention.wq", "layers.*.attention.wk", "layers.*.attention.wv")
NAMES = (
    NameRule("transformer.wte.weight", ("embed.tokens.weight",)),
    NameRule("transformer.wpe.weight", ("embed.positions.weight",)),
    *_norm("transformer.h.*.ln_1", "layers.*.attention_norm"),
    *_linear("transformer.h.*.attn.c_attn", *_QKV),
    *_linear("transformer.h.*.attn.c_proj", "layers.*.attention.wo"),
    *_norm("transformer.h.*.ln_2", "layers.*.mlp_norm"),
    *_linear("transformer.h.*.mlp.c_fc", "layers.*.mlp.w1"),
    *_linear("transformer.h.*.mlp.c_proj", "layers.*.mlp.w2"),
    *_norm("transformer.ln_f", "norm"),
    NameRule("lm_head.weight", ("head.weight",)),
)
"""Hugging Face's names; nanoGPT has the same."""


def _to_json(config: GPT2Config) -> dict[str, Any]:
    return {
        **_FIXED,
        "model_type": "gpt2",
        "n_positions": config.max_sequence_length,
        "n_ctx": config.max_sequence_length,
        "n_embd": config.hidden_size,
        "n_inner": config.ffn_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "activation_function": "gelu_new" if config.activation == "gelu_tanh" else "gelu",
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
    }


def _from_json(theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
    require_fixed(theirs, _FIXED, path)
    embedding, branches = (theirs.get(key, 0.1) for key in ("embd_pdrop", "resid_pdrop"))
    if embedding != branches:
        raise CheckpointError(
            f"embd_pdrop is {embedding} and resid_pdrop {branches}: a GPT-2 here has one dropout for both",
            where=path,
            fix="Give both the value to train with; they change nothing in evaluation and generation.",
        )
    activation = theirs.get("activation_function", "gelu_new")
    if activation not in _GELU:
        raise unsupported(path, "activation_function", activation, f"one of {', '.join(_GELU)}")
    return {
        "kind": "gpt2",
        "vocab_size": theirs["vocab_size"],
        "max_sequence_length": theirs["n_positions"],
        "num_layers": theirs["n_layer"],
        "hidden_size": theirs["n_embd"],
        "num_heads": theirs["n_head"],
        "ffn_size": theirs.get("n_inner") or 4 * theirs["n_embd"],
        "activation": _GELU[activation],
        "tied_embedding": theirs.get("tie_word_embeddings", True),
        "dropout": branches,
        "attention_dropout": theirs.get("attn_pdrop", 0.1),
        "norm_eps": theirs.get("layer_norm_epsilon", 1e-5),
        "init_std": theirs.get("initializer_range", 0.02),
    }


def _to_args(config: GPT2Config) -> dict[str, Any]:
    return {
        "add_position_embedding": True,
        "position_embedding_type": "learned_absolute",
        "use_rotary_position_embeddings": False,
        "rotary_base": 10000,
        "rotary_seq_len_interpolation_factor": None,
        "use_rope_scaling": False,
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "swiglu": False,
        "bias_swiglu_fusion": False,
        "bias_gelu_fusion": config.activation == "gelu_tanh",
        "normalization": "LayerNorm",
    }


def _from_args(args: Mapping[str, Any], where: Path) -> dict[str, Any]:
    fused = args.get("bias_gelu_fusion", True) and args.get("add_bias_linear", True)  # it has tanh inside
    return {"activation": "gelu_tanh" if fused or args.get("openai_gelu") else "gelu"}


GPT2_FAMILY = Family(
    config=GPT2Config,
    huggingface=HuggingFaceTable(
        model_types=("gpt2",),
        names=NAMES,
        architecture=lambda config: "GPT2LMHeadModel",
        to_json=_to_json,
        from_json=_from_json,
        required=("vocab_size", "n_positions", "n_layer", "n_embd", "n_head"),
        values={
            **dict.fromkeys(("vocab_size", "n_positions", "n_embd", "n_head"), value.COUNT),
            "n_layer": value.LAYERS,
            "n_inner": value.COUNT.or_null(),
            "layer_norm_epsilon": value.POSITIVE,
            "initializer_range": value.NOT_NEGATIVE,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), value.PROBABILITY),
            **dict.fromkeys(("tie_word_embeddings", *_FIXED), value.SWITCH),
            "activation_function": value.WORD,
        },
        multiples=(("n_embd", "n_head"),),
    ),
    megatron=MegatronTable(
        mlp_inputs=("layers.*.mlp.w1",),
        rms_norm=False,
        linear_biases=True,
        to_args=_to_args,
        from_args=_from_args,
        why_not_legacy=lambda config: None,
    ),
    with_biases=lambda config: dataclasses.replace(config, bias=True),
)
