"""A model as it lies on a disk: its tensors are read one at a time, when they are asked for.

Conversions go through this form, whatever the formats, so that they need the memory of a few tensors
and not of a model.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from groundup.checkpoint.companions import Companions
from groundup.checkpoint.loaded_model import LoadedModel
from groundup.checkpoint.vocab_padding import logical, logical_weights, misfits, physical
from groundup.core.errors import CheckpointError
from groundup.models import ModelConfig, build_model
from groundup.tokens.tokenizer.base import Tokenizer

DtypeName = Literal["float32", "bfloat16", "float16"]

_DTYPES: Mapping[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LazyTensor:
    """A tensor that is not in memory.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        read: Brings it to memory, on the CPU.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def size_bytes(self) -> int:
        """Bytes of its values."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclasses.dataclass(frozen=True, kw_only=True)
class LazyModel:
    """A model on a disk with all that belongs to it.

    Attributes:
        config: The architecture.
        weights: Logical tensors by our names: whole, at the true vocabulary, a tied head once.
        tokenizer: What its token ids mean.
        source: The folder.
        moments: "parameter name/entry" -> logical tensor of the optimizer; empty where there are none.
        step: Of the training; 0 when unknown.
        samples: Sequences that it was trained on; 0 when unknown.
        bos_ids: Ids that stand before every prompt.
        companions: Chat template, settings of generation and other files beside it.
        megatron_args: Plain values that Megatron-LM kept with it; empty for others' models.
        optimizer: The settings of the AdamW that trained it (lr, beta1, ...); empty where they are not known.
    """

    config: ModelConfig
    weights: Mapping[str, LazyTensor]
    tokenizer: Tokenizer
    source: Path
    moments: Mapping[str, LazyTensor] = dataclasses.field(default_factory=dict)
    step: int = 0
    samples: int = 0
    bos_ids: tuple[int, ...] = ()
    companions: Companions = dataclasses.field(default_factory=Companions)
    megatron_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses weights that are not the config's, and a tokenizer with more ids than the model."""
        shapes = {name: tensor.shape for name, tensor in self.weights.items()}
        if problems := misfits(parameters_on_meta(self.config), self.config, shapes):
            raise CheckpointError(f"does not fit its config: {problems}", where=self.source)
        if self.tokenizer.vocab_size > self.config.vocab_size:
            raise CheckpointError(
                f"its tokenizer has {self.tokenizer.vocab_size:,} ids,"
                f" the model only {self.config.vocab_size:,}",
                where=self.source,
                fix="Name the model's own tokenizer.",
            )


def torch_dtype(name: DtypeName) -> torch.dtype:
    """The dtype of a name."""
    return _DTYPES[name]


def parameters_on_meta(config: ModelConfig) -> dict[str, Tensor]:
    """The model's parameters, without memory."""
    return dict(build_model(config, device="meta").named_parameters())


def logical_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter at the true vocabulary."""
    return {
        name: tuple(logical(name, tensor, config).shape)
        for name, tensor in parameters_on_meta(config).items()
    }


def in_memory(tensor: Tensor) -> LazyTensor:
    """A tensor that is in memory already."""
    return LazyTensor(shape=tuple(tensor.shape), dtype=tensor.dtype, read=lambda: tensor)


def stored_of(loaded: LoadedModel) -> LazyModel:
    """A model that is in memory, as one that could be on a disk."""
    weights = logical_weights(loaded.model, loaded.config)
    return LazyModel(
        config=loaded.config,
        weights={name: in_memory(tensor.to("cpu")) for name, tensor in weights.items()},
        tokenizer=loaded.tokenizer,
        source=loaded.source,
        bos_ids=loaded.bos_ids,
        companions=loaded.companions,
    )


def load(stored: LazyModel, *, device: torch.device | str) -> LoadedModel:
    """Brings a model to memory for use: in evaluation mode, in fp32, tensor by tensor."""
    model = build_model(stored.config, device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(physical(name, stored.weights[name].read(), stored.config))
    return LoadedModel(
        config=stored.config,
        model=model.eval(),
        tokenizer=stored.tokenizer,
        source=stored.source,
        bos_ids=stored.bos_ids,
        companions=stored.companions,
    )


def in_dtype(stored: LazyModel, dtype: torch.dtype) -> LazyModel:
    """The model with its weights rounded to a dtype as they are read; moments stay as they are.

    Reading raises a CheckpointError where a weight is not finite or does not fit the dtype.
    """
    weights = {
        name: dataclasses.replace(
            tensor, dtype=dtype, read=_Rounded(name=name, tensor=tensor, dtype=dtype, where=stored.source)
        )
        for name, tensor in stored.weights.items()
    }
    return dataclasses.replace(stored, weights=weights)


def without_moments(stored: LazyModel) -> LazyModel:
    """The weights alone."""
    return dataclasses.replace(stored, moments={})


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rounded:
    name: str
    tensor: LazyTensor
    dtype: torch.dtype
    where: Path

    def __call__(self) -> Tensor:
        original = self.tensor.read()
        rounded = original.to(self.dtype)
        if not rounded.isfinite().all():
            fits = not original.isfinite().all()
            reason = "has values that are not finite in" if fits else "does not fit"
            raise CheckpointError(
                f"{self.name} {reason} {str(self.dtype).removeprefix('torch.')}",
                where=self.where,
                fix="Convert an earlier checkpoint." if fits else "Convert as float32 or bfloat16.",
            )
        return rounded
