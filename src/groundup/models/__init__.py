"""Language models in plain single-device PyTorch: nothing here knows of ranks, precision or files.

A model joins by one file and one line in each of the two tables below.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from groundup.core.config import ByKind, config, from_dict
from groundup.models import gpt2, llama, stablelm
from groundup.models.gpt2 import GPT2, GPT2Config
from groundup.models.llama import Llama, LlamaConfig
from groundup.models.spec import Axes
from groundup.models.stablelm import StableLM, StableLMConfig

ModelConfig = Annotated[GPT2Config | LlamaConfig | StableLMConfig, ByKind]

Model = GPT2 | Llama | StableLM

_MODELS: dict[type, tuple[type[Model], Axes]] = {
    GPT2Config: (GPT2, gpt2.AXES),
    LlamaConfig: (Llama, llama.AXES),
    StableLMConfig: (StableLM, stablelm.AXES),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightDtypes:
    """In which dtypes a model's weights lie in memory.

    Attributes:
        default: Of all that have none of their own.
        linear: Of linear layers and their biases, but not of a head that is the embedding; or ``default``.
    """

    default: torch.dtype = torch.float32
    linear: torch.dtype | None = None


FP32 = WeightDtypes()


def build_model(
    config: ModelConfig, *, device: torch.device | str = "cpu", dtypes: WeightDtypes = FP32
) -> Model:
    """Builds the model of a config, with weights that ``models.init`` fills; "meta" allocates none."""
    with torch.device("meta"):
        model = _MODELS[type(config)][0](config)  # type: ignore[arg-type]  # the table pairs them
    model.to(dtypes.default)
    for module in model.modules() if dtypes.linear else ():
        if isinstance(module, nn.Linear) and not (module is model.head and config.tied_embedding):
            module.to(dtypes.linear)
    if str(device) != "meta":
        model.to_empty(device=device)
        model.tie_weights()
    return model


def axes_of(config: ModelConfig) -> Axes:
    """Returns the dimension names of the model's parameters."""
    return _MODELS[type(config)][1]


def lm_head(model: nn.Module, hidden: Tensor, vocab_size: int) -> Tensor:
    """Logits [..., vocab_size] in fp32 of final hidden states [..., D], without those of padding rows."""
    assert isinstance(model.head, nn.Linear), "the last part of a model has the head"
    return linear(hidden, model.head.weight[:vocab_size]).float()


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode within the block, and back into training mode where it was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@config
class _Holder:
    model: ModelConfig


def model_config_from(tree: Mapping[str, Any], *, where: object) -> ModelConfig:
    """Reads a model config from plain values.

    Raises:
        ConfigError: With all problems found; ``where`` names the source of the values.
    """
    return from_dict(_Holder, {"model": tree}, where=where).model
