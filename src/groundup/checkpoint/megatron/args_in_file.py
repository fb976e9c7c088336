"""The ``args`` in a file of Megatron-LM's, of the types that the rest of the code relies on."""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from groundup.core.errors import CheckpointError

_NUMBERS = (
    *(
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
    ),
    *("max_position_embeddings", "seq_length", "padded_vocab_size", "true_vocab_size", "rotary_base"),
    *("tensor_model_parallel_size", "model_parallel_size", "pipeline_model_parallel_size"),
    *("make_vocab_size_divisible_by", "consumed_train_samples"),
)
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
    for key in _NUMBERS:
        require_number(args, key, where)
    for key in _TEXTS:
        if not isinstance(args.get(key), str | None):
            raise CheckpointError(f"{key} is {str(args[key])[:40]!r}, expected a text", where=where)
    return args


def require_number(values: Mapping[str, Any], key: str, where: Path) -> None:
    """Refuses a value that is there and no finite number.

    Raises:
        CheckpointError: Names it.
    """
    value = values.get(key)
    if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
        raise CheckpointError(f"{key} is {str(value)[:40]!r}, expected a number", where=where)
