"""Models on a disk, whose tensors are read one at a time, and models in memory.

Conversions work on the former, whatever the formats, so that they need the memory of a few tensors.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from groundup.checkpoint.companions import Companions
from groundup.checkpoint.logical_tensors import find_mismatch, logical_shapes, logical_weights, unpad
from groundup.core.errors import CheckpointError, DataError
from groundup.models import FP32, ModelConfig, WeightDtypes, build_model
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.word_list import end_ids

DtypeName = Literal["float32", "bfloat16", "float16"]

_SHOWN = 3


class NoTokenizer(DataError):
    """A model comes without a tokenizer, and the user names none."""


@runtime_checkable
class PartReader(Protocol):
    """Reads a tensor, or a part of it alone."""

    def __call__(self) -> Tensor:
        """Reads the whole."""
        ...

    def part(self, offset: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        """Reads a rectangle."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class LazyTensor:
    """A tensor on disk; ``read`` brings it to memory, on the CPU."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of its values."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def part(self, offset: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        """Reads a rectangle of the tensor; without the rest where ``read`` is a ``PartReader``."""
        if isinstance(self.read, PartReader):
            return self.read.part(offset, shape)
        values = self.read()
        for dim, (begin, length) in enumerate(zip(offset, shape, strict=True)):
            values = values.narrow(dim, begin, length)
        return values


@dataclasses.dataclass(frozen=True, kw_only=True)
class LazyModel:
    """A model on disk with all that belongs to it.

    Attributes:
        config: The architecture.
        weights: Logical tensors by our names: whole, at the true vocabulary, a tied head once.
        tokenizer: What its token ids mean.
        source: The folder it is read from.
        moments: "parameter name/entry" -> logical tensor of the optimizer; empty where there are none.
        step: Training step; 0 when unknown.
        samples: Sequences that it was trained on; 0 when unknown.
        updated_samples: Samples of the steps with an update; None for all.
        bos_ids: Ids that stand before every prompt.
        companions: Chat template, generation settings and other files beside it.
        megatron_args: Plain values that Megatron-LM kept with it; empty for others' models.
        optimizer: The settings of the AdamW that trained it (lr, beta1, ...); empty where they are not known.
        loss_scale: State of the loss scaler, as far as it is known; empty where there was none.
    """

    config: ModelConfig
    weights: Mapping[str, LazyTensor]
    tokenizer: Tokenizer
    source: Path
    moments: Mapping[str, LazyTensor] = dataclasses.field(default_factory=dict)
    step: int = 0
    samples: int = 0
    updated_samples: int | None = None
    bos_ids: tuple[int, ...] = ()
    companions: Companions = dataclasses.field(default_factory=Companions)
    megatron_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    loss_scale: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses weights that do not fit the config, and a tokenizer with more ids than the model."""
        if mismatch := find_mismatch(logical_shapes(self.config), self.shapes):
            raise CheckpointError(f"does not fit its config: {mismatch}", where=self.source)
        if self.tokenizer.vocab_size > self.config.vocab_size:
            raise CheckpointError(
                f"its tokenizer has {self.tokenizer.vocab_size:,} ids,"
                f" the model only {self.config.vocab_size:,}",
                where=self.source,
                fix="Name the model's own tokenizer.",
            )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each weight."""
        return {name: tensor.shape for name, tensor in self.weights.items()}

    def read_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Reads the weights, one at a time in memory."""
        return ((name, tensor.read()) for name, tensor in self.weights.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model in memory, ready for use.

    Attributes:
        config: The architecture.
        model: In evaluation mode, on the device and with weights of the dtypes that were asked for.
        tokenizer: What its token ids mean.
        source: The folder it was read from.
        step: Training step; 0 when unknown.
        bos_ids: Ids that stand before every prompt (the begin token of many Llamas); none for
            models trained here.
        companions: Chat template, generation settings and other files beside it.
    """

    config: ModelConfig
    model: nn.Module
    tokenizer: Tokenizer
    source: Path
    step: int = 0
    bos_ids: tuple[int, ...] = ()
    companions: Companions = dataclasses.field(default_factory=Companions)

    @property
    def bos_id(self) -> int:
        """Returns the id that begins a text without a prompt: the begin token, or the end of a document."""
        return self.bos_ids[0] if self.bos_ids else self.tokenizer.end_of_document_id

    @property
    def stop_ids(self) -> frozenset[int]:
        """Returns the ids that end a text: the end of a document, and those of the generation settings."""
        return frozenset({*end_ids(self.tokenizer), *self.companions.end_ids})


def torch_dtype(name: DtypeName) -> torch.dtype:
    """Returns the dtype of a name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of a dtype without its module: "float32"."""
    return str(dtype).removeprefix("torch.")


def in_memory(tensor: Tensor) -> LazyTensor:
    """Wraps a tensor that is in memory already; one on a GPU comes to the CPU when it is read."""
    return LazyTensor(shape=tuple(tensor.shape), dtype=tensor.dtype, read=tensor.cpu)


def as_lazy(loaded: LoadedModel) -> LazyModel:
    """Wraps a model that is in memory as one that could be on a disk."""
    weights = logical_weights(loaded.model, loaded.config)
    return LazyModel(
        weights={name: in_memory(tensor) for name, tensor in weights.items()}, **shared_fields(loaded)
    )


def load(stored: LazyModel, *, device: torch.device | str, dtypes: WeightDtypes = FP32) -> LoadedModel:
    """Brings a model to memory for use: in evaluation mode, tensor by tensor.

    Raises:
        CheckpointError: A weight is not finite, or not in the dtype that it gets; in fp32 all are taken.
    """
    model = build_model(stored.config, device=device, dtypes=dtypes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = unpad(name, parameter, stored.config)
            values.copy_(rounded(name, stored, parameter.dtype).read())
            parameter[len(values) :] = 0
    return LoadedModel(model=model.eval(), **shared_fields(stored))


def in_dtype(stored: LazyModel, dtype: torch.dtype) -> LazyModel:
    """Returns the model with its weights rounded to a dtype as they are read; moments stay as they are.

    Reading raises a CheckpointError where a weight is not finite or does not fit the dtype.
    """
    weights = {
        name: dataclasses.replace(
            tensor, dtype=dtype, read=_Rounded(name=name, tensor=tensor, dtype=dtype, where=stored.source)
        )
        for name, tensor in stored.weights.items()
    }
    return dataclasses.replace(stored, weights=weights)


def rounded(name: str, stored: LazyModel, dtype: torch.dtype) -> LazyTensor:
    """Returns a weight as it is, for use in fp32, or rounded to another dtype as by ``in_dtype``."""
    tensor = stored.weights[name]
    if dtype == torch.float32:
        return tensor
    read = _Rounded(name=name, tensor=tensor, dtype=dtype, where=stored.source)
    return dataclasses.replace(tensor, dtype=dtype, read=read)


def without_moments(stored: LazyModel) -> LazyModel:
    """Returns the weights alone."""
    return dataclasses.replace(stored, moments={})


def require_finite(weights: Iterable[tuple[str, Tensor]], where: Path) -> None:
    """Refuses weights of which some numbers are NaN or infinite.

    Raises:
        CheckpointError: Names the first such weights.
    """
    found = []
    for name, tensor in weights:
        # The sum tells at once, unless it overflows.
        if not torch.isfinite(tensor.detach().sum()) and (count := int((~torch.isfinite(tensor)).sum())):
            found.append(f"{count:,} of {tensor.numel():,} in {name}")
    if found:
        more = f", and of {len(found) - _SHOWN} more weights" if len(found) > _SHOWN else ""
        raise CheckpointError(
            f"numbers that are not finite: {', '.join(found[:_SHOWN])}{more}",
            where=where,
            fix="It is damaged, or its training went wrong before it was saved: take an earlier checkpoint.",
        )


def require_finite_loss(loss: float, loaded: LoadedModel) -> None:
    """Refuses to give a figure that was computed from a loss that is not finite.

    Raises:
        CheckpointError: The loss is NaN or infinite.
    """
    if not math.isfinite(loss):
        raise CheckpointError(
            f"its loss is {loss}, though its weights are finite: numbers overflow while it computes",
            where=loaded.source,
            fix="Measure with --precision fp32, or take an earlier checkpoint.",
        )


def shared_fields(model: LazyModel | LoadedModel) -> dict[str, Any]:
    """Returns what a model on a disk and in memory have in common, by the names of the fields."""
    names = ("config", "tokenizer", "source", "step", "bos_ids", "companions")
    return {name: getattr(model, name) for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rounded:
    name: str
    tensor: LazyTensor
    dtype: torch.dtype
    where: Path

    def __call__(self) -> Tensor:
        return self._round(self.tensor.read())

    def part(self, offset: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        return self._round(self.tensor.part(offset, shape))

    def _round(self, original: Tensor) -> Tensor:
        rounded = original.to(self.dtype)
        if not rounded.isfinite().all():
            fits = not original.isfinite().all()
            reason = "has values that are not finite in" if fits else "does not fit"
            raise CheckpointError(
                f"{self.name} {reason} {dtype_name(self.dtype)}",
                where=self.where,
                fix="Take an earlier checkpoint." if fits else "Choose float32 or bfloat16.",
            )
        return rounded
