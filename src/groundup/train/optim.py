"""Optimizers: how gradients become updates.

An optimizer joins by one file and one member of ``Optimizer``. It builds one or several of PyTorch's for a
model's parameters, and says what state it keeps of each.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from groundup.core.config import ByKind, config
from groundup.core.config_class import PositiveFloat, Probability
from groundup.train.adamw import AdamW
from groundup.train.muon import Muon


@config
class Sgd:
    """Plain stochastic gradient descent, which hides no error of scale when two runs are compared.

    Attributes:
        lr: Peak learning rate.
        momentum: 0 for none.
    """

    kind: Literal["sgd"] = "sgd"
    lr: PositiveFloat = 0.1
    momentum: Probability = 0.0

    def build(self, parameters: Mapping[str, Tensor]) -> list[torch.optim.Optimizer]:
        """PyTorch's optimizer for these parameters."""
        return [torch.optim.SGD(list(parameters.values()), lr=self.lr, momentum=self.momentum)]

    def state_of(self, name: str, parameter: Tensor) -> dict[str, torch.dtype]:
        """Tensors of the parameter's shape that are kept of it, by entry, and their dtypes."""
        return {"momentum_buffer": parameter.dtype} if self.momentum else {}


Optimizer = Annotated[AdamW | Muon | Sgd, ByKind]


class Optimizers:
    """One or several PyTorch optimizers that step as one, with state by parameter name."""

    def __init__(self, config: Optimizer, parameters: Mapping[str, Tensor]) -> None:
        self._config = config
        self._parts = config.build(parameters)
        self._names = {parameter: name for name, parameter in parameters.items()}
        for group in self._groups():
            group["peak_lr"] = group["lr"]

    @property
    def lr(self) -> float:
        """The present learning rate of the first group."""
        return float(next(self._groups())["lr"])

    def set_rates(self, *, lr_ratio: float, progress: float) -> None:
        """Sets each group's learning rate and weight decay.

        Args:
            lr_ratio: Learning rate over its peak.
            progress: In [0, 1], of the run.
        """
        for group in self._groups():
            group["lr"] = group["peak_lr"] * lr_ratio
            if "weight_decay_at" in group:
                group["weight_decay"] = group["weight_decay_at"](progress)

    def step(self) -> None:
        """Updates all parameters."""
        for part in self._parts:
            part.step()

    def zero_grad(self) -> None:
        """Drops all gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Returns tensors by "parameter name/entry", of the parameter's shape or scalars."""
        return {
            f"{self._names[parameter]}/{entry}": torch.as_tensor(value)
            for part in self._parts
            for parameter, entries in part.state.items()
            for entry, value in entries.items()
            if value is not None
        }

    def make_room(
        self, entries: Mapping[str, Mapping[str, tuple[torch.dtype, tuple[int, ...]]]]
    ) -> dict[str, Tensor]:
        """Allocates a state to be filled: tensors by "parameter name/entry", sharded as their parameters.

        Args:
            entries: Parameter name -> entry -> dtype and logical shape; empty for a parameter without state.
                Scalars keep their dtype, others take that of ``state_of``.
        """
        room: dict[str, Tensor] = {}
        for part in self._parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    name = self._names[parameter]
                    dtypes = self._config.state_of(name, parameter)
                    part.state[parameter] = {
                        entry: torch.empty_like(parameter, dtype=dtypes[entry], requires_grad=False)
                        if shape
                        else torch.empty((), dtype=dtype, device=parameter.device)
                        for entry, (dtype, shape) in entries[name].items()
                    }
                    room |= {f"{name}/{entry}": value for entry, value in part.state[parameter].items()}
        return room

    def _groups(self) -> Iterator[dict[str, Any]]:
        return (group for part in self._parts for group in part.param_groups)


def build_optimizers(model: nn.Module, config: Optimizer) -> Optimizers:
    """The optimizer of a config for the parameters of a model that are trained."""
    return Optimizers(
        config, {name: value for name, value in model.named_parameters() if value.requires_grad}
    )
