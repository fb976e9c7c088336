"""Rotary positions in ``config.json`` and in Megatron-LM's args, in both directions.

``config.json`` has ``rope_scaling`` since transformers 4 and ``rope_parameters`` since 5. Megatron-LM's
``--use-rope-scaling`` is Llama 3.1's, of which only the factor can be chosen, and
``--rotary-seq-len-interpolation-factor`` divides positions by a whole number (RotaryEmbedding in
megatron/core/models/common/embeddings/rotary_pos_embedding.py and add_network_size_args in
megatron/training/arguments.py, 00caa53). Not every program that takes these arguments obeys them: in 00caa53
gpt_builders.py hands a core model the first alone, whose factor then is 8, and a legacy one the second alone.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.families.config_values import POSITIVE, require_values
from groundup.core.errors import CheckpointError, ConfigError
from groundup.core.log import logger
from groundup.models.llama import LlamaConfig
from groundup.models.rope import LinearRopeScaling, Llama3RopeScaling, NoRopeScaling, RopeScaling
from groundup.models.stablelm import StableLMConfig

RotaryConfig = LlamaConfig | StableLMConfig

_PART = "partial_rotary_factor"
_DEFAULT_BASE = 10000.0  # of both projects, and the only one of Megatron-LM's legacy models
_FACTOR = 8.0  # where Megatron-LM's args have none: until 2024 it could not be chosen
_NUMBERS = dict.fromkeys(
    ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    POSITIVE.or_null(),
)
_NOT_OBEYED = (
    "%s: %s = %s: some versions of Megatron-LM take this argument and do not hand it to their model"
    " (gpt_builders.py); make sure that yours does"
)


def rope_json(config: RotaryConfig) -> dict[str, Any]:
    """The keys of both, which say the same."""
    scaling = _scaling_json(config.rope_scaling)
    parameters = {"rope_type": "default", **scaling, "rope_theta": config.rope_base}
    four = {"rope_scaling": scaling} if scaling else {}
    return {"rope_theta": config.rope_base, **four, "rope_parameters": parameters}


def read_rope(theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """``rope_base`` and ``rope_scaling`` of ours, as plain values.

    Raises:
        CheckpointError: A kind of scaling or an option of it that is not supported (named), or two keys that
            contradict each other.
        KeyError: With the name of what is missing.
    """
    found = {}
    for key in ("rope_scaling", "rope_parameters"):
        if theirs.get(key):
            if not isinstance(theirs[key], dict):
                raise CheckpointError(f"{key} is {theirs[key]!r}, no group of settings", where=path)
            require_values(theirs[key], path, required=(), values=_NUMBERS, group=f"{key}.")
            found[key] = _read_scaling(key, theirs, path)
    scalings = list(found.values()) or [{"kind": "none"}]
    if scalings[0] != scalings[-1]:
        raise CheckpointError(
            f"rope_scaling {theirs['rope_scaling']!r} and rope_parameters {theirs['rope_parameters']!r}"
            " contradict each other",
            where=path,
            fix="Delete the one that is wrong.",
        )
    bases = [theirs[key]["rope_theta"] for key in found if theirs[key].get("rope_theta") is not None]
    base = bases[0] if bases else theirs.get("rope_theta")
    return {"rope_base": _DEFAULT_BASE if base is None else base, "rope_scaling": scalings[0]}


def read_rotary_fraction(theirs: Mapping[str, Any], path: Path, *, default: float) -> float:
    """The share of a head's dimensions that is rotated.

    Raises:
        CheckpointError: It is none, or given twice with different values.
    """
    groups = (theirs, theirs.get("rope_scaling"), theirs.get("rope_parameters"))
    given = [group.get(_PART) for group in groups if isinstance(group, dict)]
    found = [value for value in given if value is not None]
    if any(type(value) not in (int, float) or not 0 < value <= 1 for value in found) or len(set(found)) > 1:
        values = " and ".join(map(repr, found))
        raise CheckpointError(f"{_PART} is {values}, it must be one number above 0, 1 at most", where=path)
    return float(found[0]) if found else default


def require_all_rotated(theirs: Mapping[str, Any], path: Path) -> None:
    """Refuses a model that rotates a part of each head's dimensions.

    Raises:
        CheckpointError: Names the part.
    """
    rotated = read_rotary_fraction(theirs, path, default=1.0)
    if rotated != 1:
        raise CheckpointError(f"{_PART} = {rotated!r} is not supported, only 1.0", where=path)


def _read_scaling(key: str, theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
    given: Mapping[str, Any] = theirs[key]
    readers: Mapping[Any, Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]] = {
        "default": lambda given, theirs: {"kind": "none"},
        "linear": lambda given, theirs: {"kind": "linear", "factor": given["factor"]},
        "llama3": _read_llama3,
    }
    kind = given.get("rope_type", given.get("type", "default"))
    by_layer = [name for name, value in given.items() if isinstance(value, dict)]
    if by_layer:
        raise CheckpointError(
            f"{key} differs by kind of layer ({', '.join(by_layer)}), which is not supported", where=path
        )
    if not isinstance(kind, str) or kind not in readers:
        raise CheckpointError(
            f"{key} of type {kind!r} is not supported, only {', '.join(readers)}",
            where=path,
            fix="Choose another model.",
        )
    try:
        return readers[kind](given, theirs)
    except KeyError as error:
        raise KeyError(f"{key}.{error.args[0]}") from None


def _read_llama3(given: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    fallback = theirs["max_position_embeddings"]  # as transformers has it
    return {
        "kind": "llama3",
        "factor": given["factor"],
        "low_frequency_factor": given["low_freq_factor"],
        "high_frequency_factor": given["high_freq_factor"],
        "original_max_sequence_length": given.get("original_max_position_embeddings") or fallback,
    }


def _scaling_json(scaling: RopeScaling) -> dict[str, Any]:
    if isinstance(scaling, NoRopeScaling):
        return {}
    if isinstance(scaling, Llama3RopeScaling):
        return {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_max_sequence_length,
        }
    return {"rope_type": "linear", "factor": scaling.factor}


def is_rotary(args: Mapping[str, Any]) -> bool:
    """Whether Megatron-LM's args are those of a model with rotary positions."""
    kind = args.get("position_embedding_type")
    return kind == "rope" if kind else bool(args.get("use_rotary_position_embeddings"))


def read_rope_args(args: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """``rope_base`` and ``rope_scaling`` of a checkpoint's arguments, as plain values.

    Raises:
        CheckpointError: Both kinds of scaling at once.
    """
    base = float(args.get("rotary_base") or _DEFAULT_BASE)
    return {"rope_base": base, "rope_scaling": _read_scaling_args(args, where)}


def _read_scaling_args(args: Mapping[str, Any], where: Path) -> dict[str, Any]:
    llama3 = bool(args.get("use_rope_scaling"))
    positions = args.get("rotary_seq_len_interpolation_factor")
    if llama3 and positions:
        raise CheckpointError(
            f"use_rope_scaling together with rotary_seq_len_interpolation_factor = {positions!r}"
            " is not supported, only one of them",
            where=where,
        )
    if positions:
        logger.warning(_NOT_OBEYED, where, "rotary_seq_len_interpolation_factor", positions)
        return {"kind": "linear", "factor": positions}
    if not llama3:
        return {"kind": "none"}
    factor = args.get("rope_scaling_factor") or _FACTOR
    if factor != _FACTOR:
        logger.warning(_NOT_OBEYED, where, "rope_scaling_factor", factor)
    return {"kind": "llama3", "factor": factor}


def why_not_legacy(config: RotaryConfig) -> str | None:
    """Why a legacy model of Megatron-LM's would compute something else, or None.

    Its rotary positions have base 10,000 and no scaling but the linear one: neither ``rotary_base`` nor
    ``use_rope_scaling`` is handed to it (megatron/legacy/model/language_model.py, 00caa53).
    """
    if isinstance(config.rope_scaling, Llama3RopeScaling):
        return "Megatron-LM's legacy models know no Llama 3.1 scaling of rotary positions"
    if config.rope_base != _DEFAULT_BASE:
        return (
            f"rope_base is {config.rope_base:g}, and Megatron-LM's legacy models know {_DEFAULT_BASE:g} only"
        )
    return None


def rope_args(config: RotaryConfig) -> dict[str, Any]:
    """The arguments of a model's positions.

    Raises:
        ConfigError: They cannot say its scaling: names what.
    """
    base = config.rope_base
    return {
        "add_position_embedding": False,
        "position_embedding_type": "rope",
        "use_rotary_position_embeddings": True,
        "rotary_base": int(base) if base == int(base) else base,
        **_scaling_args(config.rope_scaling),
    }


def _scaling_args(scaling: RopeScaling) -> dict[str, Any]:
    none = {"rotary_seq_len_interpolation_factor": None, "use_rope_scaling": False}
    if isinstance(scaling, LinearRopeScaling):
        whole = int(scaling.factor)
        if whole != scaling.factor:
            raise _cannot_say("factor", scaling.factor, "a whole number")
        return {**none, "rotary_seq_len_interpolation_factor": whole}
    if not isinstance(scaling, Llama3RopeScaling):
        return none
    fixed = Llama3RopeScaling(factor=scaling.factor)  # our defaults are the values of theirs
    for name in ("low_frequency_factor", "high_frequency_factor", "original_max_sequence_length"):
        if getattr(scaling, name) != getattr(fixed, name):
            raise _cannot_say(name, getattr(scaling, name), str(getattr(fixed, name)))
    return {**none, "use_rope_scaling": True, "rope_scaling_factor": scaling.factor}


def _cannot_say(name: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(
        f"rope_scaling.{name} = {value} cannot be written for Megatron-LM, only {expected}",
        where="command line",
        fix="Write the native format or Hugging Face's.",
    )
