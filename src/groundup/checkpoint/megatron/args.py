"""Megatron-LM's ``args``, which it keeps in its checkpoints: checked, and as our model configs, both ways."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint.families import FAMILIES, family_of
from groundup.checkpoint.families.family import unsupported
from groundup.checkpoint.lazy import LazyTensor
from groundup.checkpoint.megatron.architectures import kind_of
from groundup.checkpoint.megatron.parameters import EMBEDDING, layer_of
from groundup.core.errors import CheckpointError, ConfigError
from groundup.core.log import logger
from groundup.core.vocabulary import padded_vocab_size
from groundup.models import ModelConfig, model_config_from

DEFAULT_MULTIPLE = 128
"""Of --make-vocab-size-divisible-by."""

_HEAD_DIM_WITHOUT_ARGS = 64  # of all GPT-2 sizes
NULL_TOKENIZER = "NullTokenizer"
"""The ``tokenizer_type`` of data whose ids are all there is."""
_PLAIN = (str, int, float, bool, type(None))
_MOST = {
    **dict.fromkeys(("num_layers", "num_attention_heads", "num_query_groups", "kv_channels"), 10**6),
    **dict.fromkeys(("hidden_size", "ffn_hidden_size", "max_position_embeddings", "seq_length"), 10**8),
    **dict.fromkeys(
        ("padded_vocab_size", "true_vocab_size", "vocab_size", "make_vocab_size_divisible_by"), 10**9
    ),
    **dict.fromkeys(
        ("tensor_model_parallel_size", "model_parallel_size", "pipeline_model_parallel_size"), 1000
    ),
    **dict.fromkeys(("rotary_base", "consumed_train_samples"), 10**18),
}
"""The largest of what is counted in any model: a damaged number must not be the length of a loop."""

_TEXTS = ("vocab_file", "merge_file", "tokenizer_model")


def args_in(content: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The arguments that a file holds; empty where there are none.

    Raises:
        CheckpointError: They are of no kind that Megatron-LM writes.
    """
    namespace = content.get("args")
    if namespace is None:
        return {}
    if not isinstance(namespace, argparse.Namespace):
        raise CheckpointError("its args are no argparse.Namespace", where=where)
    args = {key: value for key, value in vars(namespace).items() if not isinstance(value, torch.Tensor)}
    for key, most in _MOST.items():
        require_number(args, key, where, most=most)
    for key in _TEXTS:
        if not isinstance(args.get(key), str | None):
            raise CheckpointError(f"{key} is {str(args[key])[:40]!r}, expected a text", where=where)
    return args


def require_number(values: Mapping[str, Any], key: str, where: Path, *, most: int = 10**18) -> None:
    """Refuses a value that is there and no number from 0 to ``most``; a whole one but for ``rotary_base``.

    Raises:
        CheckpointError: Names it.
    """
    value = values.get(key)
    whole = type(value) is int or (isinstance(value, float) and (value.is_integer() or key == "rotary_base"))
    if value is not None and not (whole and 0 <= value <= most):
        given = str(value)[:40]
        raise CheckpointError(f"{key} is {given!r}, expected a number from 0 to {most:,}", where=where)


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
    """The architecture of a checkpoint, from its args and the tensors of the first stage's first rank.

    Some that were released have no args; they are taken for GPT-2.

    Raises:
        CheckpointError: A feature of the model is not supported (named), or a setting is missing.
    """
    if not args:
        return _config_without_args(tensors, num_layers, vocab_size, tp, where)
    kind = kind_of(args, where)
    for key in ("num_attention_heads", "hidden_size", "max_position_embeddings"):
        if not args.get(key):
            raise CheckpointError(f"its args have no {key}", where=where)
    heads, hidden = args["num_attention_heads"], args["hidden_size"]
    if args.get("num_layers", num_layers) != num_layers:
        raise CheckpointError(
            f"its args tell of {args['num_layers']} layers, its files hold {num_layers}",
            where=where,
            fix="Copy the checkpoint again, with all its stages.",
        )
    if args.get("kv_channels") not in (None, hidden // heads):
        raise unsupported(
            where, "kv_channels", args["kv_channels"], f"{hidden // heads} (hidden_size / heads)"
        )
    family = next(family for family in FAMILIES if family.kind == kind)
    tree: dict[str, Any] = {
        "kind": kind,
        "vocab_size": vocab_size,
        "num_layers": num_layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "ffn_size": args.get("ffn_hidden_size") or 4 * hidden,
        "max_sequence_length": args["max_position_embeddings"],
        "tied_embedding": not args.get("untie_embeddings_and_output_weights", False),
        "dropout": args.get("hidden_dropout", 0.0),
        "attention_dropout": args.get("attention_dropout", 0.0),
        "norm_eps": args.get("layernorm_epsilon", args.get("norm_epsilon", 1e-5)),
        "init_std": args.get("init_method_std", 0.02),
        **family.megatron.from_args(args, where),
    }
    try:
        return model_config_from(tree, where=where)
    except ConfigError as error:
        raise CheckpointError(f"its args describe no model: {error}", where=where) from None


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
        ConfigError: They cannot say what the model is.
    """
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
        "rotary_percent": 1.0,
        "rotary_interleaved": False,
        **family_of(config).megatron.to_args(config),
        "openai_gelu": False,
        "squared_relu": False,
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


def padded_rows(vocab_size: int, tp: int, multiple: int = DEFAULT_MULTIPLE) -> int:
    """Rows of the embedding: the least multiple of ``multiple`` times ``tp`` that holds the vocabulary.

    Source: ``_vocab_size_with_padding`` in megatron/tokenizer/tokenizer.py.
    """
    return padded_vocab_size(vocab_size, multiple * tp)


def null_vocab_size(args: Mapping[str, Any]) -> int | None:
    """The vocabulary of a model that was trained on bare ids; None where it was not.

    ``--vocab-size`` leaves out the end of a document in 992da75, and counts it in d98e8a6, whose checkpoints
    have ``null_tokenizer_eod_id``.
    """
    size = args.get("vocab_size") if args.get("tokenizer_type") == NULL_TOKENIZER else None
    return None if size is None else int(size) + ("null_tokenizer_eod_id" not in args)


def true_vocab_size(
    *, rows: int, tp: int, multiple: int, tokenizer_size: int, stated: int | None, where: object
) -> int:
    """The vocabulary without padding, of an embedding of ``rows``; ``stated`` by the user or the checkpoint.

    Raises:
        CheckpointError: The tokenizer cannot be the one of the model, or the stated size does not fit.
    """
    if stated is not None:
        if not tokenizer_size <= stated <= rows:
            raise CheckpointError(
                f"a vocabulary of {stated:,} ids must hold the tokenizer's {tokenizer_size:,} ids and fit"
                f" into the {rows:,} rows of the embedding",
                where=where,
                fix="Name the model's own tokenizer (--tokenizer), or its true vocabulary (--vocab-size).",
            )
        return stated
    if tokenizer_size == 0:
        raise CheckpointError(
            f"without a tokenizer nothing tells how many of the {rows:,} rows of its embedding are padding",
            where=where,
            fix=f"State its true vocabulary: --vocab-size, at most {rows:,}.",
        )
    # A converted checkpoint may keep the padding of another tp: the tools of Megatron-LM do so.
    paddings = {tokenizer_size} | {padded_rows(tokenizer_size, other, multiple) for other in {1, tp, 2, 4, 8}}
    if rows not in paddings:
        raise CheckpointError(
            f"its embedding has {rows:,} rows, a tokenizer of {tokenizer_size:,} ids would make"
            f" {padded_rows(tokenizer_size, tp, multiple):,} (a multiple of {multiple} x {tp})",
            where=where,
            fix="Name the model's own tokenizer (--tokenizer), or its true vocabulary (--vocab-size).",
        )
    return tokenizer_size
