"""Optimizers: how gradients become updates. Each builds PyTorch's own for a model's parameters."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groundup.core.config import ByKind, config
from groundup.core.config_class import NotNegativeFloat, PositiveFloat, Probability
from groundup.train.bf16_adamw import RoundedAdamW
from groundup.train.muon import BatchedMuon


@config
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv:1711.05101).

    Attributes:
        lr: Peak learning rate.
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of squared gradients.
        eps: Added to the root of the latter.
        weight_decay: On tensors of 2 or more dimensions only.
        state_dtype: Of the two means; bf16 halves their memory, see ``train.bf16_adamw``.
    """

    kind: Literal["adamw"] = "adamw"
    lr: PositiveFloat = 6e-4
    beta1: Probability = 0.9
    beta2: Probability = 0.95
    eps: NotNegativeFloat = 1e-8
    weight_decay: NotNegativeFloat = 0.1
    state_dtype: Literal["fp32", "bf16"] = "fp32"


@config
class Muon:
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for all else.

    Attributes:
        lr: Peak learning rate of the matrices, in AdamW's units: updates are scaled to AdamW's root
            mean square (Liu et al. 2025, arXiv:2502.16982).
        momentum: Nesterov momentum.
        weight_decay: On the matrices.
        adamw: For the embedding, the head, biases and norms.
    """

    kind: Literal["muon"] = "muon"
    lr: PositiveFloat = 2e-3
    momentum: Probability = 0.95
    weight_decay: NotNegativeFloat = 0.1
    adamw: AdamW = AdamW()


@config
class Sgd:
    """Plain stochastic gradient descent: the honest witness when two runs are compared.

    Attributes:
        lr: Peak learning rate.
        momentum: 0 for none.
    """

    kind: Literal["sgd"] = "sgd"
    lr: PositiveFloat = 0.1
    momentum: Probability = 0.0


Optimizer = Annotated[AdamW | Muon | Sgd, ByKind]


class Optimizers:
    """One or several PyTorch optimizers that step as one, with state by parameter name."""

    def __init__(self, parts: list[torch.optim.Optimizer], names: Mapping[Tensor, str]) -> None:
        self._parts = parts
        self._names = names
        for group in self._groups():
            group["peak_lr"] = group["lr"]

    @property
    def lr(self) -> float:
        """Present learning rate of the first group."""
        return float(next(self._groups())["lr"])

    def set_lr_ratio(self, ratio: float) -> None:
        """Sets each group's learning rate to ``ratio`` times its peak."""
        for group in self._groups():
            group["lr"] = group["peak_lr"] * ratio

    def step(self) -> None:
        """Updates all parameters."""
        for part in self._parts:
            part.step()

    def zero_grad(self) -> None:
        """Drops all gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Tensors by "parameter name/entry", in the parameter's shape or scalars."""
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
        """Makes a state to be filled: tensors by "parameter name/entry", spread as their parameters are.

        Args:
            entries: Parameter name -> entry -> dtype and logical shape; a parameter without entries (nothing
                was ever stepped) is left without. Scalars keep their dtype, others take the optimizer's.
        """
        room: dict[str, Tensor] = {}
        for part in self._parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    name = self._names[parameter]
                    state_dtype = getattr(part, "state_dtype", parameter.dtype)  # it may have been another
                    part.state[parameter] = {
                        entry: torch.empty_like(parameter, dtype=state_dtype, requires_grad=False)
                        if shape
                        else torch.empty((), dtype=dtype, device=parameter.device)
                        for entry, (dtype, shape) in entries[name].items()
                    }
                    room |= {f"{name}/{entry}": value for entry, value in part.state[parameter].items()}
        return room

    def _groups(self) -> Iterator[dict[str, Any]]:
        return (group for part in self._parts for group in part.param_groups)


def build_optimizers(model: nn.Module, config: Optimizer) -> Optimizers:
    """The optimizer of a config for a model's parameters; decay only on 2 or more dimensions."""
    named = dict(model.named_parameters())
    names: dict[Tensor, str] = {parameter: name for name, parameter in named.items()}
    match config:
        case AdamW():
            parts: list[torch.optim.Optimizer] = [_adamw(list(named.values()), config)]
        case Muon():
            matrices = [p for name, p in named.items() if name.startswith("layers.") and p.ndim == 2]
            chosen = set(matrices)
            others = [parameter for parameter in named.values() if parameter not in chosen]
            parts = [*_muon(matrices, config), _adamw(others, config.adamw)]
        case Sgd():
            parts = [torch.optim.SGD(list(named.values()), lr=config.lr, momentum=config.momentum)]
    return Optimizers(parts, names)


def _muon(matrices: Sequence[Tensor], config: Muon) -> Iterator[torch.optim.Optimizer]:
    """Ours for whole matrices, PyTorch's for those that are cut over ranks, gathered one by one."""
    whole = [matrix for matrix in matrices if not isinstance(matrix, DTensor)]
    cut = [matrix for matrix in matrices if isinstance(matrix, DTensor)]
    if whole:
        yield BatchedMuon(whole, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    if cut:
        yield torch.optim.Muon(
            cut,
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )


def _adamw(parameters: Sequence[Tensor], config: AdamW) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (config.beta1, config.beta2)
    if config.state_dtype == "bf16":
        return RoundedAdamW(groups, lr=config.lr, betas=betas, eps=config.eps)
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=fused)
