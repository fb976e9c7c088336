"""The values of ``config.json`` are of the right kind: said by file and key, before anything is computed."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundup.core.errors import CheckpointError

_GPT2_REQUIRED = ("vocab_size", "n_positions", "n_layer", "n_embd", "n_head")
_LLAMA_REQUIRED = (
    "vocab_size",
    "max_position_embeddings",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
)
_COUNTS = (*_GPT2_REQUIRED, *_LLAMA_REQUIRED, "n_inner", "num_key_value_heads", "head_dim")
_LAYERS = ("n_layer", "num_hidden_layers")
_MOST, _MOST_LAYERS = 1 << 28, 10_000  # beyond any model: sizes multiply, and layers are built one by one
_MAY_BE_NULL = ("n_inner", "num_key_value_heads", "head_dim", "rope_theta", "layer_types")
_POSITIVE = ("layer_norm_epsilon", "rms_norm_eps", "rope_theta")
_NOT_NEGATIVE = ("initializer_range",)
_SHARES = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout")
_SWITCHES = (
    "tie_word_embeddings",
    "use_sliding_window",
    "attention_bias",
    "mlp_bias",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "add_cross_attention",
)
_OF_ROPE = (
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
_MULTIPLES = (
    ("n_embd", "n_head"),
    ("hidden_size", "num_attention_heads"),
    ("num_attention_heads", "num_key_value_heads"),
)
_WORDS = ("activation_function", "hidden_act")


def require_values(theirs: Mapping[str, Any], path: Path) -> None:
    """Refuses a required key that is missing or null, and a value that its key cannot have.

    Args:
        theirs: The content of ``config.json``.
        path: The file.

    Raises:
        CheckpointError: Names the file, the key, the value and the rule.
    """
    for key in _GPT2_REQUIRED if theirs["model_type"] == "gpt2" else _LLAMA_REQUIRED:
        if theirs.get(key) is None:
            raise CheckpointError(f"{key} is missing", where=path, fix="Copy the model's config.json again.")
    rules: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
        (_COUNTS, lambda value: _is_count(value, _MOST), f"a whole number from 1 to {_MOST:,}"),
        (_LAYERS, lambda value: _is_count(value, _MOST_LAYERS), f"a whole number from 1 to {_MOST_LAYERS:,}"),
        (_POSITIVE, lambda value: _is_number(value) and value > 0, "a number above 0"),
        (_NOT_NEGATIVE, lambda value: _is_number(value) and value >= 0, "a number, 0 or more"),
        (_SHARES, lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 to below 1"),
        (_SWITCHES, lambda value: isinstance(value, bool), "true or false"),
        (("max_window_layers",), lambda value: type(value) is int and value >= 0, "a whole number"),
        (("layer_types",), lambda value: isinstance(value, list), "a list"),
        (_WORDS, lambda value: isinstance(value, str), "a name in quotes"),
    )
    for keys, fits, rule in rules:
        for key in keys:
            value = theirs.get(key)
            if key in theirs and not fits(value) and not (value is None and key in _MAY_BE_NULL):
                raise CheckpointError(
                    f"{key} is {value!r}, it must be {rule}", where=path, fix="Correct config.json."
                )
    _require_rope(theirs, path)
    for whole, part in _MULTIPLES:
        if theirs.get(whole) and theirs.get(part) and theirs[whole] % theirs[part]:
            raise CheckpointError(
                f"{whole} is {theirs[whole]}, not a multiple of {part}, which is {theirs[part]}",
                where=path,
                fix="Correct config.json.",
            )


def _require_rope(theirs: Mapping[str, Any], path: Path) -> None:
    for group in ("rope_scaling", "rope_parameters"):
        given = theirs.get(group)
        if not isinstance(given, dict):
            continue
        for key in _OF_ROPE:
            if given.get(key) is not None and not (_is_number(given[key]) and given[key] > 0):
                raise CheckpointError(
                    f"{group}.{key} is {given[key]!r}, it must be a number above 0",
                    where=path,
                    fix="Correct config.json.",
                )


def require_equal_dropouts(theirs: Mapping[str, Any], path: Path) -> None:
    """Refuses a GPT-2 that drops other shares of its embedding than of its branches.

    Raises:
        CheckpointError: Names both.
    """
    embedding, branches = (theirs.get(key, 0.1) for key in ("embd_pdrop", "resid_pdrop"))
    if embedding != branches:
        raise CheckpointError(
            f"embd_pdrop is {embedding} and resid_pdrop {branches}: a GPT-2 here has one dropout for both",
            where=path,
            fix="Give both the value to train with; they change nothing in evaluation and generation.",
        )


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
