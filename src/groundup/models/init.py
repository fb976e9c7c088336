"""Initial values: each parameter's depends only on (seed, its name, its logical shape).

So every parallel layout starts from the same model.
"""

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from groundup.models import ModelConfig, axes_of
from groundup.models.spec import dimensions_of

_RESIDUAL_PROJECTIONS = (".attention.wo.weight", ".mlp.w2.weight")


def initialise(
    model: nn.Module,
    config: ModelConfig,
    *,
    seed: int,
    place: Callable[[Tensor, Tensor], object] = Tensor.copy_,
) -> None:
    """Fills all parameters in place, as GPT-2 and Megatron-LM do; one whole value is in memory at a time.

    Weights are drawn from N(0, init_std); the projections that end a residual branch from
    N(0, init_std / sqrt(2 num_layers)) (GPT-2, Radford et al. 2019, section 2.3); biases are 0, norm
    weights 1. Rows of padded vocabulary ids are 0.

    Args:
        model: The whole or a part.
        config: Of the whole.
        seed: Of all values.
        place: Copies a value (on the CPU, fp32) to its parameter, of which a rank may have a part only.
    """
    axes = axes_of(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # A tied head that is a parameter of its own is the last stage's copy of the embedding.
            is_copy = config.tied_embedding and name == "head.weight"
            shape = list(parameter.shape)
            if dimensions_of(axes, name)[0] == "vocab":
                shape[0] = config.vocab_size
            value = initial_value("embed.tokens.weight" if is_copy else name, shape, config, seed)
            if missing := parameter.shape[0] - shape[0]:
                value = pad(value, (0, 0, 0, missing))
            place(parameter, value)


def initial_value(name: str, shape: list[int], config: ModelConfig, seed: int) -> Tensor:
    """Draws one parameter at its logical (unpadded, unsharded) shape, on the CPU in fp32."""
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
