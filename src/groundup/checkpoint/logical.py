"""Between a model's own tensors and the logical ones of a checkpoint: vocabulary padding goes and comes."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from groundup.core.errors import CheckpointError
from groundup.core.vocabulary import padded_vocab_size
from groundup.models import ModelConfig, axes_of, build_model
from groundup.models.spec import dimensions_of
from groundup.parallel.gather import whole


def logical(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """A parameter-shaped tensor without its rows of padded vocabulary ids."""
    return tensor[: config.vocab_size] if _has_vocabulary(name, config) else tensor


def physical(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """A logical tensor with rows of zeros for the padded vocabulary ids."""
    if not _has_vocabulary(name, config):
        return tensor
    missing = padded_vocab_size(config.vocab_size) - tensor.shape[0]
    return torch.cat((tensor, tensor.new_zeros(missing, *tensor.shape[1:])))


def logical_weights(model: nn.Module, config: ModelConfig) -> dict[str, Tensor]:
    """All parameters under their names, whole, a tied head once; all ranks must call this together."""
    return {name: logical(name, whole(tensor.detach()), config) for name, tensor in model.named_parameters()}


def load_weights(model: nn.Module, config: ModelConfig, weights: Mapping[str, Tensor], where: object) -> None:
    """Copies logical weights into a model, in place.

    Raises:
        CheckpointError: A parameter is missing, unexpected or of another shape; lists them.
    """
    parameters = dict(model.named_parameters())
    problems = [f"{name} is missing" for name in parameters.keys() - weights.keys()]
    problems += [f"{name} is unexpected" for name in weights.keys() - parameters.keys()]
    for name in parameters.keys() & weights.keys():
        expected = tuple(logical(name, parameters[name], config).shape)
        if tuple(weights[name].shape) != expected:
            problems.append(f"{name} has shape {tuple(weights[name].shape)}, expected {expected}")
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise CheckpointError(f"does not fit the model: {'; '.join(sorted(problems)[:8])}{more}", where=where)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(physical(name, weights[name], config))


def model_from(
    config: ModelConfig, weights: Mapping[str, Tensor], *, device: torch.device, where: object
) -> nn.Module:
    """A model in evaluation mode with the given logical weights."""
    model = build_model(config, device=device)
    load_weights(model, config, weights, where)
    return model.eval()


def _has_vocabulary(name: str, config: ModelConfig) -> bool:
    return dimensions_of(axes_of(config), name)[0] == "vocab"
