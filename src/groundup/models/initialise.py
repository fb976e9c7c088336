"""Initial values: each parameter's depends only on (seed, its name, its logical shape).

So every parallel layout, however it cuts the model, starts from the same one.
"""

import hashlib
import math

import torch
from torch import Tensor, nn

from groundup.models import ModelConfig, axes_of
from groundup.models.spec import dimensions_of

_RESIDUAL_PROJECTIONS = (".attention.wo.weight", ".mlp.w2.weight")


def initialise(model: nn.Module, config: ModelConfig, *, seed: int) -> None:
    """Fills all parameters in place, as GPT-2 and Megatron-LM do.

    Weights are drawn from N(0, init_std); the projections that end a residual branch from
    N(0, init_std / sqrt(2 num_layers)) (GPT-2, Radford et al. 2019, section 2.3); biases are 0, norm
    weights 1. Rows of padded vocabulary ids are 0.
    """
    axes = axes_of(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            dimensions = dimensions_of(axes, name)
            shape = list(parameter.shape)
            if dimensions[0] == "vocab":
                shape[0] = config.vocab_size
                parameter[config.vocab_size :].zero_()
            parameter[: shape[0]].copy_(initial_value(name, shape, config, seed))


def initial_value(name: str, shape: list[int], config: ModelConfig, seed: int) -> Tensor:
    """The initial value of one parameter at its logical (unpadded, unsharded) shape, on the CPU in fp32."""
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if len(shape) == 1:
        return torch.ones(shape)
    std = config.init_std
    if name.endswith(_RESIDUAL_PROJECTIONS):
        std /= math.sqrt(2 * config.num_layers)
    digest = hashlib.sha256(f"{seed}/{name}/{shape}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)
