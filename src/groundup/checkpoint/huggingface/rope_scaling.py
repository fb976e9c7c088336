"""Rotary positions in ``config.json``: ``rope_scaling`` of transformers 4 and ``rope_parameters`` of 5."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundup.core.errors import CheckpointError
from groundup.models.llama import LlamaConfig
from groundup.models.rope import Llama3RopeScaling, NoRopeScaling, RopeScaling

_DEFAULT_BASE = 10000.0


def rope_json(config: LlamaConfig) -> dict[str, Any]:
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
    for given in (theirs, theirs.get("rope_scaling"), theirs.get("rope_parameters")):
        rotated = given.get("partial_rotary_factor") if isinstance(given, dict) else None
        if rotated not in (None, 1):
            raise CheckpointError(
                f"partial_rotary_factor = {rotated!r} is not supported, only 1.0", where=path
            )
    found = {}
    for key in ("rope_scaling", "rope_parameters"):
        if theirs.get(key):
            if not isinstance(theirs[key], dict):
                raise CheckpointError(f"{key} is {theirs[key]!r}, no group of settings", where=path)
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
