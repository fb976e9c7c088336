"""Megatron-LM's ``args``, which it keeps in its checkpoints, and our model configs: in both directions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint.lazy import LazyTensor
from groundup.checkpoint.megatron.parameter_names import EMBEDDING, layer_of
from groundup.checkpoint.megatron.rope_args import read_rope_scaling, rope_scaling_args
from groundup.core.errors import CheckpointError, ConfigError
from groundup.core.log import logger
from groundup.models import ModelConfig, model_config_from
from groundup.models.gpt2 import GPT2Config
from groundup.models.llama import LlamaConfig

_HEAD_DIM_WITHOUT_ARGS = 64  # of all GPT-2 sizes
# What a model of ours cannot be; the value is what it must be, or what absence means.
_FIXED: Mapping[str, Any] = {
    "apply_layernorm_1p": False,
    "apply_residual_connection_post_layernorm": False,
    "attention_output_gate": False,
    "experimental_attention_variant": None,
    "heterogeneous_layers_config_path": None,
    "hybrid_layer_pattern": None,
    "hybrid_override_pattern": None,
    "linear_attention_freq": None,
    "mtp_num_layers": None,
    "multi_latent_attention": False,
    "no_rope_freq": None,
    "num_experts": None,
    "qk_layernorm": False,
    "rotary_interleaved": False,
    "rotary_percent": 1.0,
    "softmax_type": "vanilla",
    "squared_relu": False,
    "window_size": None,
}
_PLAIN = (str, int, float, bool, type(None))


def plain_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Those arguments that are plain values (JSON-like): no dtypes, no objects of unknown classes."""
    return {
        key: value
        for key, value in args.items()
        if isinstance(value, _PLAIN)
        or (isinstance(value, list) and all(isinstance(v, _PLAIN) for v in value))
    }


def model_config(
    args: Mapping[str, Any],
    tensors: Mapping[str, LazyTensor],
    *,
    num_layers: int,
    vocab_size: int,
    tp: int,
    where: Path,
) -> ModelConfig:
    """The architecture of a checkpoint.

    Args:
        args: Of the checkpoint; empty in some that were released, which are taken for GPT-2.
        tensors: Of the first stage's first rank, by canonical names.
        num_layers: Of all stages.
        vocab_size: The true vocabulary.
        tp: Degree of tensor parallelism.
        where: The file.

    Raises:
        CheckpointError: A feature of the model is not supported (named), or a setting is missing.
    """
    if not args:
        return _config_without_args(tensors, num_layers, vocab_size, tp, where)
    for key, value in _FIXED.items():
        if args.get(key, value) not in (value, None):
            raise _unsupported(where, key, args[key], repr(value))
    for key in ("num_attention_heads", "hidden_size", "max_position_embeddings"):
        if not args.get(key):
            raise CheckpointError(f"its args have no {key}", where=where)
    heads, hidden = args["num_attention_heads"], args["hidden_size"]
    tree: dict[str, Any] = {
        "vocab_size": vocab_size,
        "num_layers": num_layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "ffn_size": args.get("ffn_hidden_size") or 4 * hidden,
        "max_sequence_length": args["max_position_embeddings"],
    }
    if args.get("num_layers", num_layers) != num_layers:
        raise CheckpointError(
            f"its args tell of {args['num_layers']} layers, its files hold {num_layers}",
            where=where,
            fix="Copy the checkpoint again, with all its stages.",
        )
    if args.get("kv_channels") not in (None, hidden // heads):
        raise _unsupported(
            where, "kv_channels", args["kv_channels"], f"{hidden // heads} (hidden_size / heads)"
        )
    tree |= {
        "tied_embedding": not args.get("untie_embeddings_and_output_weights", False),
        "dropout": args.get("hidden_dropout", 0.0),
        "attention_dropout": args.get("attention_dropout", 0.0),
        "norm_eps": args.get("layernorm_epsilon", args.get("norm_epsilon", 1e-5)),
        "init_std": args.get("init_method_std", 0.02),
    }
    tree |= _llama(args, where) if args.get("swiglu") or _is_rotary(args) else _gpt2(args, tensors, where)
    try:
        return model_config_from(tree, where=where)
    except ConfigError as error:
        raise CheckpointError(f"its args describe no model: {error}", where=where) from None


def _is_rotary(args: Mapping[str, Any]) -> bool:
    kind = args.get("position_embedding_type")
    return kind == "rope" if kind else bool(args.get("use_rotary_position_embeddings"))


def _llama(args: Mapping[str, Any], where: Path) -> dict[str, Any]:
    for feature, present, needed in (
        ("rotary positions", _is_rotary(args), True),
        ("swiglu", bool(args.get("swiglu")), True),
        ("normalization RMSNorm", args.get("normalization", "LayerNorm") == "RMSNorm", True),
        ("add_bias_linear", bool(args.get("add_bias_linear", True)), False),
    ):
        if present is not needed:
            raise CheckpointError(
                f"a model with rotary positions or SwiGLU, but {'without' if needed else 'with'} {feature},"
                " is not supported: a Llama has rotary positions, SwiGLU and RMSNorm, and no biases"
                " but add_qkv_bias",
                where=where,
            )
    groups = args.get("num_query_groups") if args.get("group_query_attention") else None
    return {
        "kind": "llama",
        "num_kv_heads": groups or args["num_attention_heads"],
        "rope_base": float(args.get("rotary_base") or 10000),
        "rope_scaling": read_rope_scaling(args, where),
        "qkv_bias": bool(args.get("add_qkv_bias", False)),
    }


def _gpt2(args: Mapping[str, Any], tensors: Mapping[str, LazyTensor], where: Path) -> dict[str, Any]:
    if args.get("position_embedding_type", "learned_absolute") != "learned_absolute" or not args.get(
        "add_position_embedding", True
    ):
        raise CheckpointError("a GPT without learned or rotary positions is not supported", where=where)
    if args.get("normalization", "LayerNorm") != "LayerNorm":
        raise _unsupported(where, "normalization", args["normalization"], "'LayerNorm' in a GPT-2")
    if args.get("group_query_attention"):
        raise _unsupported(where, "group_query_attention", True, "False in a GPT-2")
    fused = args.get("bias_gelu_fusion", True) and args.get("add_bias_linear", True)  # it has tanh inside
    return {
        "kind": "gpt2",
        "activation": "gelu_tanh" if fused or args.get("openai_gelu") else "gelu",
    }


def _config_without_args(
    tensors: Mapping[str, LazyTensor], num_layers: int, vocab_size: int, tp: int, where: Path
) -> ModelConfig:
    positions = tensors.get("embedding.position_embeddings.weight")
    fc1 = tensors.get("decoder.layers.0.mlp.linear_fc1.weight")
    if positions is None or fc1 is None:
        raise CheckpointError("has no args, and its tensors are not a GPT-2's", where=where)
    hidden = tensors[EMBEDDING].shape[1]
    logger.warning(
        "%s has no args: taken for a GPT-2 with heads of width %d and the tanh form of GELU",
        where,
        _HEAD_DIM_WITHOUT_ARGS,
    )
    tree = {
        "kind": "gpt2",
        "vocab_size": vocab_size,
        "max_sequence_length": positions.shape[0],
        "num_layers": num_layers,
        "hidden_size": hidden,
        "num_heads": max(1, hidden // _HEAD_DIM_WITHOUT_ARGS),
        "ffn_size": tp * fc1.shape[0],
    }
    return model_config_from(tree, where=where)


def args_of(
    config: ModelConfig, *, tp: int, pp: int, rows: int, multiple: int, dtype: torch.dtype
) -> dict[str, Any]:
    """The arguments by which Megatron-LM builds this model and accepts its checkpoint.

    Raises:
        ConfigError: It has no such scaling of rotary positions.
    """
    llama = isinstance(config, LlamaConfig)
    fused = isinstance(config, GPT2Config) and config.activation == "gelu_tanh"
    return {
        "num_layers": config.num_layers,
        "encoder_num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.ffn_size,
        "num_attention_heads": config.num_heads,
        "kv_channels": config.head_dim,
        "group_query_attention": config.num_kv_heads != config.num_heads,
        "num_query_groups": config.num_kv_heads if config.num_kv_heads != config.num_heads else 1,
        "seq_length": config.max_sequence_length,
        "encoder_seq_length": config.max_sequence_length,
        "max_position_embeddings": config.max_sequence_length,
        "add_position_embedding": not llama,
        "position_embedding_type": "rope" if llama else "learned_absolute",
        "use_rotary_position_embeddings": llama,
        "rotary_percent": 1.0,
        "rotary_base": _whole(config.rope_base) if isinstance(config, LlamaConfig) else 10000,
        "rotary_interleaved": False,
        **rope_scaling_args(config),
        "add_bias_linear": not llama,
        "add_qkv_bias": config.qkv_bias if isinstance(config, LlamaConfig) else True,
        "swiglu": llama,
        "bias_swiglu_fusion": llama,
        "bias_gelu_fusion": fused,
        "openai_gelu": False,
        "squared_relu": False,
        "normalization": "RMSNorm" if llama else "LayerNorm",
        "layernorm_epsilon": config.norm_eps,
        "norm_epsilon": config.norm_eps,
        "apply_layernorm_1p": False,
        "apply_residual_connection_post_layernorm": False,
        "untie_embeddings_and_output_weights": not config.tied_embedding,
        "hidden_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "init_method_std": config.init_std,
        "num_experts": None,
        "make_vocab_size_divisible_by": multiple,
        "vocab_size": config.vocab_size,
        "true_vocab_size": config.vocab_size,  # our own: none of theirs tells it for all tokenizers
        "padded_vocab_size": rows,
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "transformer_pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": None,
        "num_layers_per_virtual_pipeline_stage": None,
        "world_size": tp * pp,
        "data_parallel_size": 1,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "rank": 0,
        "fp16": dtype == torch.float16,
        "bf16": dtype == torch.bfloat16,
        "params_dtype": dtype,
    }


def count_layers(chunk: Mapping[str, LazyTensor], where: Path) -> int:
    """Layers in one part of a model, which are numbered from 0.

    Raises:
        CheckpointError: Numbers are missing.
    """
    layers = {layer for name in chunk if (layer := layer_of(name)) is not None}
    missing = next((number for number in range(len(layers)) if number not in layers), None)
    if missing is not None:
        raise CheckpointError(f"has no layer {missing}, though layer {max(layers)}", where=where)
    return len(layers)


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value


def _unsupported(where: Path, key: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"{key} = {value!r} is not supported, only {expected}", where=where)
