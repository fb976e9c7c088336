"""Logical tensors, of which all checkpoints consist: their names, shapes and true vocabulary.

A model in memory pads its vocabulary; a checkpoint does not know of that.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from groundup.core.vocabulary import padded_vocab_size
from groundup.models import ModelConfig, axes_of, build_model
from groundup.models.spec import dimensions_of
from groundup.parallel.dtensor import whole

Shape = tuple[int, ...]

ADAPTER_PARAMETERS = (".lora_a", ".lora_b")
"""How the names of an adapter's parameters end, behind that of their linear layer; no axis table has them."""

_LISTED = 6
_ALIKE = 0.8


def logical_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Returns the shape of each parameter at the true vocabulary."""
    parameters = build_model(config, device="meta").named_parameters()
    return {name: tuple(unpad(name, parameter, config).shape) for name, parameter in parameters}


def logical_weights(model: nn.Module, config: ModelConfig) -> dict[str, Tensor]:
    """Returns all parameters, whole, a tied head once; all ranks must call this together."""
    return {name: unpad(name, whole(tensor.detach()), config) for name, tensor in model.named_parameters()}


def unpad(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Cuts the rows of padded vocabulary ids off a parameter-shaped tensor."""
    return tensor[: config.vocab_size] if has_vocabulary(name, config) else tensor


def pad(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Adds rows of zeros for the padded vocabulary ids to a logical tensor."""
    if not has_vocabulary(name, config):
        return tensor
    missing = padded_vocab_size(config.vocab_size) - tensor.shape[0]
    return torch.cat((tensor, tensor.new_zeros(missing, *tensor.shape[1:])))


def has_vocabulary(name: str, config: ModelConfig) -> bool:
    """Tells whether the first dimension of a parameter is the vocabulary."""
    return not is_of_adapter(name) and dimensions_of(axes_of(config), name)[0] == "vocab"


def is_of_adapter(name: str) -> bool:
    """Tells whether a parameter is an adapter's."""
    return name.endswith(ADAPTER_PARAMETERS)


def kept_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that a checkpoint holds: those of adapters where there are some, else all."""
    parameters = dict(model.named_parameters())
    return {name: value for name, value in parameters.items() if is_of_adapter(name)} or parameters


def find_mismatch(
    expected: Mapping[str, Shape] | Collection[str], found: Mapping[str, Shape] | Collection[str]
) -> str | None:
    """Finds missing tensors (with the nearest names), unexpected ones and, between mappings, other shapes.

    Args:
        expected: Names, or the shape of each.
        found: Likewise.
    """
    missing, unexpected = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    with_nearest = [
        f"{name} (there is {close[0]})"
        if (close := difflib.get_close_matches(name, unexpected, 1, _ALIKE))
        else name
        for name in missing[:_LISTED]
    ]
    problems = [f"missing: {_listed(with_nearest, missing)}"] if missing else []
    problems += [f"unexpected: {_listed(unexpected, unexpected)}"] if unexpected else []
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        shapes = [
            f"{name} has shape {found[name]}, expected {expected[name]}"
            for name in sorted(expected.keys() & found.keys())
            if found[name] != expected[name]
        ]
        problems += [_listed(shapes, shapes)] if shapes else []
    return "; ".join(problems) or None


def _listed(shown: Sequence[str], names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(shown[:_LISTED]) + more
