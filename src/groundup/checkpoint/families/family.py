"""The tables of a model family: how Hugging Face and Megatron-LM name and describe it."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.families.config_values import ValueRule
from groundup.checkpoint.families.name_rules import NameRule
from groundup.core.errors import CheckpointError

JsonReader = Callable[[Mapping[str, Any], Path], dict[str, Any]]
"""Reads another project's settings, from the file that is named in errors, as values of our config."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuggingFaceTable:
    """How ``transformers`` describes the family.

    Attributes:
        model_types: Values of ``model_type`` in ``config.json`` that are read as this family.
        names: One rule for each tensor.
        architecture: The name of their class for one of our configs.
        to_json: The family's part of ``config.json``.
        from_json: Our config; KeyError names what is missing.
        required: Keys of ``config.json`` that must be there and not null.
        values: What the value of each known key may be.
        multiples: Pairs of keys of which the first is a multiple of the second.
        why_not: Why ``transformers`` has no class for one of our configs, or None.
    """

    model_types: tuple[str, ...]
    names: tuple[NameRule, ...]
    architecture: Callable[[Any], str]
    to_json: Callable[[Any], dict[str, Any]]
    from_json: JsonReader
    required: tuple[str, ...]
    values: Mapping[str, ValueRule]
    multiples: tuple[tuple[str, str], ...]
    why_not: Callable[[Any], str | None] = lambda config: None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MegatronTable:
    """How Megatron-LM describes the family.

    Attributes:
        mlp_inputs: Our layers that are its ``linear_fc1``: two in a gated MLP.
        rms_norm: Whether norms are RMSNorms, which the legacy names tell.
        linear_biases: Whether all linear layers have biases.
        to_args: The family's args for one of our configs; ConfigError where they cannot say it.
        from_args: Our config.
        why_not_legacy: Why its legacy models would compute something else for one of our configs, or None.
    """

    mlp_inputs: tuple[str, ...]
    rms_norm: bool
    linear_biases: bool
    to_args: Callable[[Any], dict[str, Any]]
    from_args: JsonReader
    why_not_legacy: Callable[[Any], str | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """All that other projects' formats need to know of a model family.

    Attributes:
        config: The class of its configs.
        huggingface: Its table for Hugging Face.
        megatron: Its table for Megatron-LM.
        with_biases: One of its configs as the formats keep it that have no option to leave biases out.
    """

    config: type
    huggingface: HuggingFaceTable
    megatron: MegatronTable
    with_biases: Callable[[Any], Any] = lambda config: config

    @property
    def kind(self) -> str:
        """The ``kind`` of its configs."""
        defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(self.config)}
        return str(defaults["kind"])


def unsupported(where: Path, key: str, value: Any, expected: str) -> CheckpointError:
    """The refusal of a setting that our models do not have."""
    return CheckpointError(
        f"{key} = {value!r} is not supported, only {expected}", where=where, fix="Choose another model."
    )


def require_fixed(theirs: Mapping[str, Any], fixed: Mapping[str, Any], where: Path) -> None:
    """Refuses a setting of another value than the only one that our models have.

    Raises:
        CheckpointError: Names it.
    """
    for key, value in fixed.items():
        if theirs.get(key, value) != value:
            raise unsupported(where, key, theirs[key], repr(value))
