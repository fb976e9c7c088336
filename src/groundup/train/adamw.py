"""AdamW: PyTorch's, or ours with its two moments in bf16: half of the optimizer's memory.

bf16 has 8 significant bits. A moment that moves by less than 2^-9 of itself a step would, rounded to the
nearest, never move at all: with beta2 = 0.999 a second moment could only grow. So it is rounded up or down
by chance, in proportion (stochastic rounding; Gupta et al. 2015, arXiv:1502.02551): right on average whatever
the betas. DeepSeek-V3 keeps both moments in bf16 (2024, arXiv:2412.19437, section 3.3.1).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from groundup.core.config import config
from groundup.core.config_class import NotNegativeFloat, PositiveFloat, Probability
from groundup.parallel.dtensor import local

_BUCKET = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Numbers whose moments are widened at a time: as many as caches hold, or as keep a GPU busy."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


@config
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv:1711.05101).

    Attributes:
        lr: Peak learning rate.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        eps: Added to the root of the second moment.
        weight_decay: On tensors of 2 or more dimensions only.
        weight_decay_start: Weight decay at the beginning of the run, at whose end it is ``weight_decay``;
            None for the same all along.
        weight_decay_shape: Of its way from the one to the other.
        state_dtype: Of the two moments; bf16 halves their memory, see ``RoundedAdamW``.
    """

    kind: Literal["adamw"] = "adamw"
    lr: PositiveFloat = 6e-4
    beta1: Probability = 0.9
    beta2: Probability = 0.95
    eps: NotNegativeFloat = 1e-8
    weight_decay: NotNegativeFloat = 0.1
    weight_decay_start: NotNegativeFloat | None = None
    weight_decay_shape: Literal["linear", "cosine"] = "linear"
    state_dtype: Literal["fp32", "bf16"] = "fp32"

    def build(self, parameters: Mapping[str, Tensor]) -> list[torch.optim.Optimizer]:
        """PyTorch's optimizer for these parameters."""
        tensors = list(parameters.values())
        decayed = {"weight_decay": self.weight_decay, "weight_decay_at": self.weight_decay_at}
        groups: list[dict[str, Any]] = [
            {"params": [one for one in tensors if one.ndim >= 2], **decayed},
            {"params": [one for one in tensors if one.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        betas = (self.beta1, self.beta2)
        if self.state_dtype == "bf16":
            return [RoundedAdamW(groups, lr=self.lr, betas=betas, eps=self.eps)]
        fused = all(tensor.device.type in ("cpu", "cuda") for tensor in tensors)
        return [torch.optim.AdamW(groups, lr=self.lr, betas=betas, eps=self.eps, fused=fused)]

    def weight_decay_at(self, progress: float) -> float:
        """Weight decay at ``progress`` in [0, 1] of the run."""
        if self.weight_decay_start is None:
            return self.weight_decay
        risen = progress if self.weight_decay_shape == "linear" else 0.5 * (1 - math.cos(math.pi * progress))
        return self.weight_decay_start + risen * (self.weight_decay - self.weight_decay_start)

    def state_of(self, name: str, parameter: Tensor) -> dict[str, torch.dtype]:
        """Tensors of the parameter's shape that are kept of it, by entry, and their dtypes."""
        return dict.fromkeys(_MOMENTS, torch.bfloat16 if self.state_dtype == "bf16" else parameter.dtype)


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A flat range of a parameter, its gradient and its moments; ``step`` is a copy."""

    parameter: Tensor
    gradient: Tensor
    moments: tuple[Tensor, Tensor]
    step: Tensor


class RoundedAdamW(torch.optim.Optimizer):
    """``torch.optim.AdamW``, fused, with moments in bf16; weights and gradients are fp32.

    Each step widens the moments of a bucket of numbers to fp32, updates them by PyTorch's kernel, and rounds
    them. The direction of a rounding is a hash of the number and the step: it needs no RNG state, and is the
    same in a resumed run and on ranks that hold the same parameter.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters that have a gradient."""
        assert closure is None, "gradients are made before"
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for bucket in _buckets([piece for one in parameters for piece in self._pieces(one)]):
                _update(bucket, group)
            for parameter in parameters:
                self.state[parameter]["step"] += 1

    def _pieces(self, parameter: Tensor) -> Iterator[_Piece]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name in _MOMENTS:
                state[name] = torch.zeros_like(parameter, dtype=torch.bfloat16)
        assert parameter.grad is not None, "others were left out"
        tensors = (parameter, parameter.grad, *(state[name] for name in _MOMENTS))
        flat = [local(tensor).view(-1).split(_BUCKET[parameter.device.type]) for tensor in tensors]
        for own, gradient, first, second in zip(*flat, strict=True):
            yield _Piece(own, gradient, (first, second), state["step"].clone())


def _update(bucket: Sequence[_Piece], group: dict[str, Any]) -> None:
    sizes = [piece.parameter.numel() for piece in bucket]
    scratch = [torch.empty(sum(sizes), device=bucket[0].parameter.device) for _ in _MOMENTS]
    wide = [list(tensor.split(sizes)) for tensor in scratch]
    narrow = [[piece.moments[number] for piece in bucket] for number in range(len(_MOMENTS))]
    for exact, rounded in zip(wide, narrow, strict=True):
        torch._foreach_copy_(exact, rounded)
    adamw(
        [piece.parameter for piece in bucket],
        [piece.gradient for piece in bucket],
        wide[0],
        wide[1],
        [],
        [piece.step for piece in bucket],
        fused=True,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
    for flat, exact, rounded in zip(scratch, wide, narrow, strict=True):
        round_stochastically_(flat, bucket[0].step)
        torch._foreach_copy_(rounded, exact)


def round_stochastically_(values: Tensor, step: Tensor) -> None:
    """Rounds fp32 numbers to those of bf16, in place, up with a chance that is the distance from below.

    bf16 is the upper half of fp32's bits, so that 16 random bits, added before the lower half is cut off,
    carry over with just that chance; zeros and infinities have nothing that could. The random bits are a
    hash of the number's own bits and the step (the multipliers are MurmurHash3's).

    Args:
        values: fp32, contiguous.
        step: A whole number, on the same device.
    """
    bits = values.view(torch.int32)
    key = (step.to(torch.int64) * 0x9E3779B1 & 0x7FFFFFFF).to(torch.int32)
    noise = torch.add(key, bits, alpha=-0x7A143595)  # 0x85EBCA6B
    noise ^= noise >> 15
    noise *= -0x3D4D51CB  # 0xC2B2AE35
    noise >>= 16
    noise &= 0xFFFF
    bits += noise
    bits &= -0x10000


def _buckets(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Yields the pieces that are updated together."""
    bucket: list[_Piece] = []
    count = 0
    for piece in pieces:
        size = piece.parameter.numel()
        if bucket and count + size > _BUCKET[piece.parameter.device.type]:
            yield bucket
            bucket, count = [], 0
        bucket.append(piece)
        count += size
    if bucket:
        yield bucket
