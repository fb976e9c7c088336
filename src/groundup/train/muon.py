"""Muon, which orthogonalizes matrices of one shape together: few large products, not many small ones."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from groundup.core.config import config
from groundup.core.config_class import NotNegativeFloat, PositiveFloat, Probability
from groundup.parallel.device import lacks
from groundup.train.adamw import AdamW

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_EPS = 1e-7
_STACK = {"cpu": 1 << 20, "cuda": 1 << 27}
"""Most numbers of a stack: more would be no faster, and take memory."""


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

    def build(self, parameters: Mapping[str, Tensor]) -> list[torch.optim.Optimizer]:
        """Ours for whole matrices, PyTorch's for those that are cut over ranks, gathered one by one."""
        matrices = {name: one for name, one in parameters.items() if _is_matrix_of_layer(name, one)}
        others = {name: one for name, one in parameters.items() if name not in matrices}
        options: dict[str, Any] = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        found: list[torch.optim.Optimizer] = []
        if whole := [one for one in matrices.values() if not isinstance(one, DTensor)]:
            found.append(BatchedMuon(whole, lr=self.lr, **options))
        if cut := [one for one in matrices.values() if isinstance(one, DTensor)]:
            found.append(torch.optim.Muon(cut, lr=self.lr, adjust_lr_fn="match_rms_adamw", **options))
        return found + self.adamw.build(others)

    def state_of(self, name: str, parameter: Tensor) -> dict[str, torch.dtype]:
        """Tensors of the parameter's shape that are kept of it, by entry, and their dtypes."""
        if _is_matrix_of_layer(name, parameter):
            return {"momentum_buffer": parameter.dtype}
        return self.adamw.state_of(name, parameter)


def _is_matrix_of_layer(name: str, parameter: Tensor) -> bool:
    return name.startswith("layers.") and parameter.ndim == 2


class BatchedMuon(torch.optim.Optimizer):
    """``torch.optim.Muon`` with ``adjust_lr_fn="match_rms_adamw"`` for whole matrices, in stacks.

    Its state is the same, and so are updates but for the rounding of bf16 products, which other kernels sum
    in another order. A processor without bf16, which may take a hundred times as long to emulate it, iterates
    in fp32. Matrices that are sharded (``DTensor``) are for PyTorch's own.
    """

    def __init__(
        self, matrices: Sequence[Tensor], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates all matrices that have a gradient."""
        assert closure is None, "gradients are made before"
        for group in self.param_groups:
            for stack in _stacks([matrix for matrix in group["params"] if matrix.grad is not None]):
                self._update(stack, group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        buffers = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        directions = torch._foreach_lerp(gradients, buffers, group["momentum"])
        dtype = torch.float32 if lacks("bf16", matrices[0].device) else torch.bfloat16
        updates = orthogonalized([direction.to(dtype) for direction in directions])
        rows, columns = matrices[0].shape
        lr = group["lr"] * 0.2 * math.sqrt(max(rows, columns))
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, list(updates), alpha=-lr)


def orthogonalized(matrices: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns nearly U V^T of each matrix U S V^T: singular values are brought to between 0.5 and 1.5.

    Newton-Schulz iterations of Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon/), for
    matrices of one shape, in bf16 or fp32.
    """
    x = torch.stack(list(matrices)) if len(matrices) > 1 else matrices[0].clone()
    add_product = torch.baddbmm if len(matrices) > 1 else torch.addmm
    is_tall = x.shape[-2] > x.shape[-1]  # the smaller of the two Gram matrices is enough
    x.div_(torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=_EPS))
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x.mT @ x if is_tall else x @ x.mT
        polynomial = add_product(gram, gram, gram, beta=b, alpha=c)
        x = add_product(x, *((x, polynomial) if is_tall else (polynomial, x)), beta=a)
    return x.unbind() if len(matrices) > 1 else [x]


def _stacks(matrices: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yields matrices of one shape, dtype and device, as many as a stack may hold."""
    alike: dict[object, list[Tensor]] = {}
    for matrix in matrices:
        alike.setdefault((matrix.shape, matrix.dtype, matrix.device), []).append(matrix)
    for found in alike.values():
        size = max(1, _STACK.get(found[0].device.type, _STACK["cuda"]) // found[0].numel())
        yield from (found[begin : begin + size] for begin in range(0, len(found), size))
