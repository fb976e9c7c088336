"""Low-rank adapters (LoRA; Hu et al. 2021, arXiv:2106.09685): weights W of a base model become W + s B A.

Shapes: R rank, I inputs of a linear layer, O its outputs.
"""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LazyModel, LazyTensor, in_dtype
from groundup.checkpoint.logical_tensors import ADAPTER_PARAMETERS
from groundup.core.config_class import Positive, PositiveFloat, Probability, config
from groundup.core.errors import CheckpointError

_LAYER = "layers."


@config
class AdapterAbout:
    """What an adapter is of, and what its product is multiplied by.

    Attributes:
        base: Folder of the base model.
        base_fingerprint: Of the base's weights; empty where it is not known.
        rank: R.
        alpha: The product is multiplied by alpha / R.
        rslora: By alpha / sqrt(R) instead (rank-stabilized; Kalajdzievski 2023, arXiv:2312.03732).
        dropout: Of the adapter's inputs while it is trained.
    """

    base: str
    base_fingerprint: str = ""
    rank: Positive
    alpha: PositiveFloat
    rslora: bool = False
    dropout: Probability = 0.0

    @property
    def scale(self) -> float:
        """Returns s."""
        return scale_of(self.alpha, self.rank, rslora=self.rslora)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRank:
    """What is added to one weight.

    Attributes:
        a_RI: A.
        b_OR: B.
        scale: s.
    """

    a_RI: LazyTensor
    b_OR: LazyTensor
    scale: float

    def values(self, offset: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        """Computes a rectangle of s B A, in fp32."""
        a_RI = self.a_RI.read().float()[:, offset[1] : offset[1] + shape[1]]
        b_OR = self.b_OR.read().float()[offset[0] : offset[0] + shape[0]]
        return (b_OR @ a_RI).mul_(self.scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter on disk.

    Attributes:
        about: Its settings.
        parts: Name of a weight of the base -> what is added to it.
        source: The folder that it is read from.
    """

    about: AdapterAbout
    parts: Mapping[str, LowRank]
    source: Path


def scale_of(alpha: float, rank: int, *, rslora: bool) -> float:
    """Returns by what the product of an adapter is multiplied."""
    return alpha / (math.sqrt(rank) if rslora else rank)


def adapter_of(about: AdapterAbout, tensors: Mapping[str, LazyTensor], source: Path) -> Adapter:
    """Returns the adapter whose parameters a checkpoint of groundup holds, by their names.

    Raises:
        CheckpointError: Tensors are missing, or others are there.
    """
    a, b = ADAPTER_PARAMETERS
    layers = sorted({name.removesuffix(a).removesuffix(b) for name in tensors})
    if lost := {f"{layer}{end}" for layer in layers for end in (a, b)} ^ tensors.keys():
        raise CheckpointError(f"is not an adapter: {min(lost)} is one half", where=source)
    parts = {
        f"{layer}.weight": LowRank(a_RI=tensors[layer + a], b_OR=tensors[layer + b], scale=about.scale)
        for layer in layers
    }
    return Adapter(about=about, parts=parts, source=source)


def merged(base: LazyModel, adapter: Adapter) -> LazyModel:
    """Returns the base with the adapter added to its weights as they are read, all in fp32.

    Raises:
        CheckpointError: The adapter is of another base, which is named beside this one.
    """
    require_base(base, adapter)
    base = in_dtype(base, torch.float32)
    weights = {
        name: dataclasses.replace(tensor, read=_Merged(base=tensor, low_rank=adapter.parts[name]))
        if name in adapter.parts
        else tensor
        for name, tensor in base.weights.items()
    }
    return dataclasses.replace(base, weights=weights, moments={})


def require_base(base: LazyModel, adapter: Adapter) -> None:
    """Refuses a base that the adapter was not trained on.

    Raises:
        CheckpointError: Names both, and what differs.
    """
    problem = ""
    for name, part in adapter.parts.items():
        fits = (part.b_OR.shape[0], part.a_RI.shape[1])
        if name not in base.weights:
            problem = f"there is no {name} in it"
        elif base.weights[name].shape != fits:
            problem = f"its {name} has shape {base.weights[name].shape}, the adapter's is {fits}"
        if problem:
            break
    wanted = adapter.about.base_fingerprint
    if not problem and wanted and wanted != (found := base_fingerprint(base)):
        problem = f"its weights are others (fingerprint {found}, that of the adapter's base is {wanted})"
    if problem:
        raise CheckpointError(
            f"is an adapter of {adapter.about.base or 'another model'}, not of {base.source}: {problem}",
            where=adapter.source,
            fix="Name the base model that it was trained on.",
        )


def require_same_base(now: AdapterAbout, saved: AdapterAbout | None, where: Path) -> None:
    """Refuses to go on with an adapter on another base than it was trained on.

    Raises:
        CheckpointError: Names both.
    """
    if saved is None or saved.base_fingerprint != now.base_fingerprint:
        of = f"an adapter of {saved.base}" if saved else "no adapter"
        raise CheckpointError(
            f"holds {of}, and start.path leads to {now.base}, which has other weights",
            where=where,
            fix="Restore start.path, or name another run_dir.",
        )


def base_fingerprint(base: LazyModel) -> str:
    """Returns a fingerprint of a model's weights: of its first and last layer, as bf16 rounds them.

    A copy in another format, or rounded to bf16, has the same; one that was trained further has another.
    """
    ends = tuple(f"{_LAYER}{number}." for number in {0, base.config.num_layers - 1})
    digest = hashlib.sha256()
    for name in sorted(name for name in base.weights if name.startswith(ends)):
        values = base.weights[name].read().to(torch.bfloat16)
        if values.any():  # a format without an option to leave biases out has biases of 0
            digest.update(f"{name}{tuple(values.shape)}".encode())
            digest.update(bytes(values.contiguous().flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()[:16]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Merged:
    """Reads a weight of the base and adds the product of the adapter."""

    base: LazyTensor
    low_rank: LowRank

    def __call__(self) -> Tensor:
        return self.part((0, 0), self.base.shape)

    def part(self, offset: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        return self.base.part(offset, shape) + self.low_rank.values(offset, shape)
