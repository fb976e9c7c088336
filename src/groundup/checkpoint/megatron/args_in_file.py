"""The ``args`` in a file of Megatron-LM's, of the types that the rest of the code relies on."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from groundup.core.errors import CheckpointError

_MOST = {
    **dict.fromkeys(("num_layers", "num_attention_heads", "num_query_groups", "kv_channels"), 10**6),
    **dict.fromkeys(("hidden_size", "ffn_hidden_size", "max_position_embeddings", "seq_length"), 10**8),
    **dict.fromkeys(("padded_vocab_size", "true_vocab_size", "make_vocab_size_divisible_by"), 10**9),
    **dict.fromkeys(("tensor_model_parallel_size", "model_parallel_size"), 1000),
    **dict.fromkeys(("pipeline_model_parallel_size",), 1000),
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
        raise CheckpointError(
            f"{key} is {str(value)[:40]!r}, expected a number from 0 to {most:,}", where=where
        )
