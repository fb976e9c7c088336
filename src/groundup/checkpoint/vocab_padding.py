"""Between a model's own tensors and the logical ones of a checkpoint: vocabulary padding goes and comes."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from groundup.core.vocabulary import padded_vocab_size
from groundup.models import ModelConfig, axes_of
from groundup.models.spec import dimensions_of
from groundup.parallel.dtensor import whole


def logical(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """A parameter-shaped tensor without its rows of padded vocabulary ids."""
    return tensor[: config.vocab_size] if has_vocabulary(name, config) else tensor


def physical(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """A logical tensor with rows of zeros for the padded vocabulary ids."""
    if not has_vocabulary(name, config):
        return tensor
    missing = padded_vocab_size(config.vocab_size) - tensor.shape[0]
    return torch.cat((tensor, tensor.new_zeros(missing, *tensor.shape[1:])))


def logical_weights(model: nn.Module, config: ModelConfig) -> dict[str, Tensor]:
    """All parameters under their names, whole, a tied head once; all ranks must call this together."""
    return {name: logical(name, whole(tensor.detach()), config) for name, tensor in model.named_parameters()}


def misfits(
    parameters: Mapping[str, Tensor], config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> str:
    """How tensors of the given logical shapes do not fit a model's parameters; empty when they do."""
    problems = [f"{name} is missing" for name in parameters.keys() - shapes.keys()]
    problems += [f"{name} is unexpected" for name in shapes.keys() - parameters.keys()]
    for name in parameters.keys() & shapes.keys():
        expected = tuple(logical(name, parameters[name], config).shape)
        if shapes[name] != expected:
            problems.append(f"{name} has shape {shapes[name]}, expected {expected}")
    more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
    return "; ".join(sorted(problems)[:8]) + more


def has_vocabulary(name: str, config: ModelConfig) -> bool:
    """Whether the first dimension of a parameter is the vocabulary's."""
    return dimensions_of(axes_of(config), name)[0] == "vocab"
