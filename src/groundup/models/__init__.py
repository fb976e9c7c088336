"""Language models in plain single-device PyTorch: nothing here knows of ranks, precision or files.

A model joins by one file and one line in each of the two tables below.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import torch

from groundup.core.config import ByKind, config, from_dict
from groundup.models import gpt2, llama
from groundup.models.gpt2 import GPT2, GPT2Config
from groundup.models.llama import Llama, LlamaConfig
from groundup.models.spec import Axes

ModelConfig = Annotated[GPT2Config | LlamaConfig, ByKind]

Model = GPT2 | Llama

_MODELS: dict[type, tuple[type[GPT2] | type[Llama], Axes]] = {
    GPT2Config: (GPT2, gpt2.AXES),
    LlamaConfig: (Llama, llama.AXES),
}


def build_model(config: ModelConfig, *, device: torch.device | str = "cpu") -> Model:
    """The model of a config with uninitialised weights (see ``models.init``); "meta" allocates none."""
    with torch.device("meta"):
        model = _MODELS[type(config)][0](config)  # type: ignore[arg-type]  # the table pairs them
    if str(device) != "meta":
        model.to_empty(device=device)
        model.tie_weights()
    return model


def axes_of(config: ModelConfig) -> Axes:
    """The dimension names of the model's parameters."""
    return _MODELS[type(config)][1]


@config
class _Holder:
    model: ModelConfig


def model_config_from(tree: Mapping[str, Any], *, where: object) -> ModelConfig:
    """Reads a model config from plain values.

    Raises:
        ConfigError: With all problems found; ``where`` names the source of the values.
    """
    return from_dict(_Holder, {"model": tree}, where=where).model
