"""What other projects' formats need to know of a model family: one table for each, in a module of its own."""

import dataclasses

import torch

from groundup.checkpoint.families.family import Family
from groundup.checkpoint.families.gpt2_family import GPT2_FAMILY
from groundup.checkpoint.families.llama_family import LLAMA_FAMILY
from groundup.checkpoint.families.stablelm_family import STABLELM_FAMILY
from groundup.checkpoint.lazy import LazyModel, in_memory
from groundup.checkpoint.logical_tensors import logical_shapes
from groundup.core.errors import ConfigError
from groundup.models import ModelConfig

FAMILIES: tuple[Family, ...] = (GPT2_FAMILY, LLAMA_FAMILY, STABLELM_FAMILY)


def family_of(config: ModelConfig) -> Family:
    """The tables of a config's family.

    Raises:
        ConfigError: It has none; another family's would describe another model.
    """
    for family in FAMILIES:
        if type(config) is family.config:
            return family
    raise ConfigError(
        f"a model of kind {config.kind} has no table of names and settings in other projects' formats",
        where="model.kind",
        fix="Keep it in the native format, or add its table to checkpoint/families.",
    )


def with_biases(stored: LazyModel) -> LazyModel:
    """The same model with biases, of 0 where it has none, for formats that cannot leave them out."""
    config = family_of(stored.config).with_biases(stored.config)
    if config == stored.config:
        return stored
    dtype = next(iter(stored.weights.values())).dtype
    weights = {
        name: stored.weights.get(name) or in_memory(torch.zeros(shape, dtype=dtype))
        for name, shape in logical_shapes(config).items()
    }
    return dataclasses.replace(stored, config=config, weights=weights)
