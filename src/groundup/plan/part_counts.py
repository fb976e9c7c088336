"""Parameters of a model by part, and what a rank of a layout holds of them, counted on meta."""

import dataclasses
import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from groundup.models import ModelConfig, axes_of, build_model
from groundup.models.spec import dimensions_of
from groundup.train.optim import Optimizer

_CUT = ("vocab", "heads", "ffn")
"""Dimensions that tensor parallelism cuts; it cuts ``kv_heads`` where they divide."""

_PARTS = {
    "embed.tokens": "token embedding",
    "embed.positions": "position embedding",
    "attention": "attention",
    "mlp": "MLP",
    "head": "output head",
}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a model.

    Attributes:
        where: "embed", "layer", or "head" with the final norm.
        dimensions: Names of its dimensions, as the model's ``AXES`` has them.
        value: On meta, of the shape of the whole.
    """

    name: str
    where: str
    dimensions: tuple[str, ...]
    value: Tensor

    def on_rank(self, model: ModelConfig, tp: int, shard: int = 1) -> int:
        """Counts the numbers of it on the rank with most of them; ``shard`` ranks share its rows besides."""
        rows, *others = self.shape_on_rank(model, tp)
        return math.prod([-(-rows // shard), *others])

    def shape_on_rank(self, model: ModelConfig, tp: int) -> list[int]:
        """Returns the shape of it on the rank of tensor parallelism with most of it."""
        sizes = list(self.value.shape)
        for number, dimension in enumerate(self.dimensions):
            cut = dimension in _CUT or (dimension == "kv_heads" and model.num_kv_heads % tp == 0)
            if cut and (number == 0 or self.value.ndim == 2):
                sizes[number] = -(-sizes[number] // tp)
        return sizes


@dataclasses.dataclass(frozen=True)
class Held:
    """Numbers that a rank holds.

    Attributes:
        weights: All parameters.
        matrices: Those of matrix products, which autocast copies to the format of the products.
        state_bytes: Of the optimizer's tensors for them.
    """

    weights: int
    matrices: int
    state_bytes: int


@functools.lru_cache(maxsize=8)
def parameters_of(model: ModelConfig) -> tuple[Parameter, ...]:
    """Lists the parameters of a model; a tied head is none, and the first layer stands for all."""
    axes = axes_of(model)
    smaller = dataclasses.replace(model, num_layers=1)
    return tuple(
        Parameter(name, _where(name), dimensions_of(axes, name), value)
        for name, value in build_model(smaller, device="meta").named_parameters()
    )


def count_by_part(model: ModelConfig) -> dict[str, int]:
    """Counts the parameters of each part of a model, at the padded vocabulary."""
    counts: dict[str, int] = {}
    for one in parameters_of(model):
        times = model.num_layers if one.where == "layer" else 1
        part = _part(one.name)
        counts[part] = counts.get(part, 0) + times * one.value.numel()
    return counts


@functools.lru_cache(maxsize=4096)
def held_of(where: str, model: ModelConfig, optimizer: Optimizer, tp: int, shard: int) -> Held:
    """Counts what a rank holds of a layer, the embedding, or the final norm with the head.

    Args:
        where: As ``Parameter.where``.
        model: Architecture.
        optimizer: Whose state is counted.
        tp: Ranks that share each layer.
        shard: Ranks that share what tensor parallelism leaves (ZeRO).
    """
    weights = matrices = state = 0
    for one in parameters_of(model):
        if one.where != where:
            continue
        count = one.on_rank(model, tp, shard)
        weights += count
        matrices += count * (one.where == "layer" and one.value.ndim == 2)
        state += count * sum(dtype.itemsize for dtype in optimizer.state_of(one.name, one.value).values())
    return Held(weights, matrices, state)


def head_of(model: ModelConfig, tp: int) -> int:
    """Counts the numbers of the output head on a rank, be it tied or not."""
    (rows,) = {one.value.shape[0] for one in parameters_of(model) if one.name == "embed.tokens.weight"}
    return -(-rows // tp) * model.hidden_size


def count_on_rank(model: ModelConfig, tp: int) -> int:
    """Counts the parameters on a rank of tensor parallelism alone."""
    return sum(
        one.on_rank(model, tp) * (model.num_layers if one.where == "layer" else 1)
        for one in parameters_of(model)
    )


def meta_state(model: ModelConfig, optimizer: Optimizer) -> Iterator[tuple[Parameter, int, int]]:
    """Yields parameters with how often they come and the bytes of state that the optimizer keeps of each."""
    for one in parameters_of(model):
        dtypes: list[torch.dtype] = list(optimizer.state_of(one.name, one.value).values())
        times = model.num_layers if one.where == "layer" else 1
        yield one, times, sum(dtype.itemsize for dtype in dtypes) * one.value.numel()


def _where(name: str) -> str:
    first = name.partition(".")[0]
    return {"layers": "layer", "embed": "embed"}.get(first, "head")


def _part(name: str) -> str:
    inner = name.split(".")[2] if name.startswith("layers.") else name.rpartition(".")[0]
    return _PARTS.get(inner, "norms")
