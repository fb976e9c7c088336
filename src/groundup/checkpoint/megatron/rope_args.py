"""Megatron-LM's arguments of scaled rotary positions, in both directions.

``--use-rope-scaling`` is Llama 3.1's, of which only the factor can be chosen, and
``--rotary-seq-len-interpolation-factor`` divides positions by a whole number (RotaryEmbedding in
megatron/core/models/common/embeddings/rotary_pos_embedding.py and add_network_size_args in
megatron/training/arguments.py, 00caa53). Not every program that takes these arguments obeys them: in 00caa53
gpt_builders.py hands a core model the first alone, whose factor then is 8, and a legacy one the second alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.megatron.parameter_names import Naming
from groundup.core.errors import CheckpointError, ConfigError
from groundup.core.log import logger
from groundup.models import ModelConfig
from groundup.models.llama import LlamaConfig
from groundup.models.rope import LinearRopeScaling, Llama3RopeScaling, NoRopeScaling

_LEGACY_BASE = 10000.0
_FACTOR = 8.0  # where the args have none: until 2024 it could not be chosen
_NOT_OBEYED = (
    "%s: %s = %s: some versions of Megatron-LM take this argument and do not hand it to their model"
    " (gpt_builders.py); make sure that yours does"
)


def read_rope_scaling(args: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Our scaling of a checkpoint's arguments, as plain values.

    Raises:
        CheckpointError: Both kinds at once.
    """
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


def why_not_legacy(config: ModelConfig) -> str:
    """Why a legacy model of Megatron-LM's would compute something else; empty where it would not.

    Its rotary positions have base 10,000 and no scaling but the linear one: neither ``rotary_base`` nor
    ``use_rope_scaling`` is handed to it (megatron/legacy/model/language_model.py, 00caa53).
    """
    if not isinstance(config, LlamaConfig):
        return ""
    if isinstance(config.rope_scaling, Llama3RopeScaling):
        return "Megatron-LM's legacy models know no Llama 3.1 scaling of rotary positions"
    if config.rope_base != _LEGACY_BASE:
        return (
            f"rope_base is {config.rope_base:g}, and Megatron-LM's legacy models know {_LEGACY_BASE:g} only"
        )
    return ""


def require_rope(config: ModelConfig, naming: Naming) -> None:
    """Refuses rotary positions that the Megatron-LM of these names would get wrong without a word.

    Raises:
        ConfigError: Says why.
    """
    if naming == "legacy" and (reason := why_not_legacy(config)):
        raise ConfigError(reason, where="command line", fix="Write the newer names: --names core.")


def rope_scaling_args(config: ModelConfig) -> dict[str, Any]:
    """The arguments of a model's scaling.

    Raises:
        ConfigError: They cannot say it: names what.
    """
    none = {"rotary_seq_len_interpolation_factor": None, "use_rope_scaling": False}
    scaling = config.rope_scaling if isinstance(config, LlamaConfig) else NoRopeScaling()
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
