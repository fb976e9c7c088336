"""LoRA (Hu et al. 2021, arXiv:2106.09685): trains low-rank adapters beside frozen linear layers.

A layer with weight W then computes W x + s B A x. The layers are found by the model's axis table, which has
the linear ones of a block.

Shapes: R rank, I inputs.
"""

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from groundup.checkpoint.logical_tensors import ADAPTER_PARAMETERS
from groundup.checkpoint.low_rank import scale_of
from groundup.core.config import config
from groundup.core.config_class import NotNegative, PositiveFloat, Probability
from groundup.core.errors import ConfigError
from groundup.models import ModelConfig, axes_of
from groundup.parallel.layout import Layout
from groundup.parallel.low_rank_linear import add_adapter


@config
class LoraConfig:
    """Low-rank adapters, which alone are trained.

    Attributes:
        rank: Of each adapter; 0 for none: all weights are trained.
        alpha: The adapters' product is multiplied by alpha / rank.
        rslora: By alpha / sqrt(rank) instead, so that higher ranks learn as quickly.
        dropout: Of the adapters' inputs, while training.
        targets: Linear layers of a block, separated by commas: all, attention, mlp, or by name: wq, wk, wv,
            wo, w1, w2, w3.
    """

    rank: NotNegative = 0
    alpha: PositiveFloat = 16.0
    rslora: bool = False
    dropout: Probability = 0.0
    targets: str = "all"


def target_layers(model: ModelConfig, targets: str) -> list[str]:
    """Returns the patterns of the linear layers that are adapted, as the axis table has them.

    Raises:
        ConfigError: A name is none of the model's linear layers.
    """
    layers = [
        name.removesuffix(".weight")
        for name, dimensions in axes_of(model).items()
        if name.startswith("layers.") and len(dimensions) == 2
    ]
    wanted = [word.strip() for word in targets.split(",") if word.strip()]
    known = {part for layer in layers for part in layer.split(".")[2:]}
    if unknown := [word for word in wanted if word not in known | {"all"}] or ([] if wanted else [targets]):
        raise ConfigError(
            f"{unknown[0]!r} is no linear layer of a {model.kind}",
            where="lora.targets",
            fix=f"Choose of all, {', '.join(sorted(known))}.",
        )
    return [layer for layer in layers if "all" in wanted or set(wanted) & set(layer.split("."))]


def require_layout(lora: LoraConfig, layout: Layout) -> None:
    """Refuses a layout under which the adapters would not be the same model.

    Raises:
        ConfigError: Says why.
    """
    if lora.dropout and layout.tp > 1:
        raise ConfigError(
            "the ranks of tensor parallelism would each drop other inputs of one adapter",
            where="lora.dropout",
            fix="Set lora.dropout=0 or layout.tp=1.",
        )


def add_adapters(model: nn.Module, config: ModelConfig, lora: LoraConfig) -> None:
    """Freezes all weights and adds adapters in place: after tensor parallelism, before FSDP.

    Args:
        model: On meta or not, whole or a stage of a pipeline; the adapters get no values yet.
        config: Of the whole.
        lora: Of rank 1 or more.

    Raises:
        ConfigError: A target is none of the model's.
    """
    targets = {tuple(layer.split(".")[2:]) for layer in target_layers(config, lora.targets)}
    model.requires_grad_(False)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and tuple(name.split(".")[2:]) in targets:
            scale = scale_of(lora.alpha, lora.rank, rslora=lora.rslora)
            add_adapter(module, rank=lora.rank, scale=scale, dropout=lora.dropout)


def fill_adapters(model: nn.Module, *, seed: int, place: Callable[[Tensor, Tensor], object]) -> None:
    """Gives adapters their initial values: A uniform as PEFT draws it, B zero, so that nothing changes yet.

    Args:
        model: With adapters.
        seed: Of all values, which depend on nothing else but a parameter's name and shape.
        place: Copies a whole value to its parameter, of which a rank may have a part only.
    """
    a, b = ADAPTER_PARAMETERS
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(a):
                place(parameter, initial_a(name, tuple(parameter.shape), seed))
            elif name.endswith(b):
                place(parameter, torch.zeros(parameter.shape))


def initial_a(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Draws A [R, I] from U(-1 / sqrt(I), 1 / sqrt(I)): Kaiming's for a leaky ReLU of slope sqrt(5)."""
    digest = hashlib.sha256(f"{seed}/{name}/{list(shape)}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    bound = 1 / math.sqrt(shape[1])
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
