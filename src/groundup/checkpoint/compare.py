"""Compares two checkpoints tensor by tensor, and averages several."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LazyModel, LazyTensor, dtype_name, without_moments
from groundup.checkpoint.native.contents import read_groups
from groundup.checkpoint.native.load import TensorGroup
from groundup.core.errors import CheckpointError

_NOT_COMPARED = "random"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """How a tensor of one checkpoint differs from that of another.

    Attributes:
        group: "model", "optimizer", ...
        name: Of the tensor.
        problem: That it is missing, or of another shape or dtype; empty otherwise.
        largest: Largest absolute difference of values; infinite where one is not finite and the other is.
        num_different: Number of values that differ in any bit but the sign of zero.
        size: Number of values that were compared.
    """

    group: str
    name: str
    problem: str = ""
    largest: float = 0.0
    num_different: int = 0
    size: int = 0

    @property
    def is_equal(self) -> bool:
        """Tells whether the tensors are equal."""
        return not self.problem and not self.num_different

    @property
    def rank(self) -> float:
        """Returns the order in which differences are shown, the largest first."""
        return self.largest if self.size else float("inf")

    def describe(self) -> str:
        """Returns the difference in a few words."""
        if self.is_equal:
            return "equal"
        values = (
            f"largest difference {self.largest:.3g}, {self.num_different:,} of {self.size:,} values differ"
        )
        return "; ".join(filter(None, (self.problem, values if self.size else "")))


def compare(first: Path, second: Path) -> Iterator[Difference]:
    """Compares all tensors of two checkpoints, two at a time in memory."""
    groups = sorted({*read_groups(first), *read_groups(second)} - {_NOT_COMPARED})
    for group in groups:
        one, other = (
            TensorGroup(folder, group) if group in read_groups(folder) else None for folder in (first, second)
        )
        for name in sorted({*(one or ()), *(other or ())}):
            if one is None or name not in one:
                yield Difference(group=group, name=name, problem="only in the second")
            elif other is None or name not in other:
                yield Difference(group=group, name=name, problem="only in the first")
            elif one[name].shape != other[name].shape:
                shapes = f"shape {list(one[name].shape)} and {list(other[name].shape)}"
                yield Difference(group=group, name=name, problem=shapes)
            else:
                yield _difference(group, name, one.read(name), other.read(name))


def mean_of(models: Sequence[LazyModel]) -> LazyModel:
    """Returns the mean of the weights of models, computed in fp64 when a weight is read; without moments.

    Raises:
        CheckpointError: They differ in architecture or tokenizer.
    """
    first = models[0]
    for other in models[1:]:
        for what, one, another in (
            ("architecture", first.config, other.config),
            ("tokenizer", first.tokenizer.fingerprint, other.tokenizer.fingerprint),
        ):
            if one != another:
                raise CheckpointError(
                    f"has another {what} than {first.source}: {another}, not {one}", where=other.source
                )
    weights = {
        name: dataclasses.replace(
            tensor, read=functools.partial(_mean, [model.weights[name] for model in models], tensor.dtype)
        )
        for name, tensor in first.weights.items()
    }
    newest = max(models, key=lambda model: model.step)
    return dataclasses.replace(without_moments(newest), weights=weights)


def _difference(group: str, name: str, one: Tensor, other: Tensor) -> Difference:
    dtypes = [dtype_name(tensor.dtype) for tensor in (one, other)]
    different = (one != other) & ~(one.isnan() & other.isnan())
    largest = 0.0
    if different.any():
        gaps = (one[different].double() - other[different].double()).abs()
        largest = float(gaps.nan_to_num(nan=torch.inf).max())
    return Difference(
        group=group,
        name=name,
        problem=f"{dtypes[0]} and {dtypes[1]}" if dtypes[0] != dtypes[1] else "",
        largest=largest,
        num_different=int(different.sum()),
        size=one.numel(),
    )


def _mean(tensors: Sequence[LazyTensor], dtype: torch.dtype) -> Tensor:
    total = torch.zeros(tensors[0].shape, dtype=torch.float64)
    for tensor in tensors:
        total += tensor.read()
    return (total / len(tensors)).to(dtype)
