"""LoRA (Hu et al. 2021, arXiv:2106.09685): trains low-rank adapters beside frozen linear layers.

A layer with weight W then computes W x + s B A x. The layers are found by the model's axis table, which has
the linear ones of a block.

Shapes: R rank, I inputs.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from groundup.checkpoint.lazy import LazyModel
from groundup.checkpoint.logical_tensors import ADAPTER_PARAMETERS
from groundup.checkpoint.low_rank import AdapterAbout, base_fingerprint, scale_of
from groundup.core.config import config
from groundup.core.config_class import NotNegative, PositiveFloat, Probability
from groundup.core.errors import ConfigError
from groundup.core.log import quiet
from groundup.core.progress import human_count
from groundup.finetune.int8_base import as_float, require_int8_base
from groundup.models import ModelConfig, axes_of, build_model
from groundup.models.count import num_parameters
from groundup.parallel.dtensor import place
from groundup.parallel.low_rank_linear import add_adapter
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.tokens.tokenizer.word_list import integers
from groundup.train.config import TrainConfig
from groundup.train.init_weights import open_start
from groundup.train.learning import Adapters


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
        base_weights: Of those layers: "float", in the run's precision, or "int8", rounded to 8 bits for less
            memory (torchao), which the adapters learn to make up for.
    """

    rank: NotNegative = 0
    alpha: PositiveFloat = 16.0
    rslora: bool = False
    dropout: Probability = 0.0
    targets: str = "all"
    base_weights: Literal["float", "int8"] = "float"


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


def adapters_of(
    run: TrainConfig, lora: LoraConfig, change_start: Callable[[LazyModel], LazyModel] | None = None
) -> Adapters:
    """Returns what the training loop is given of the adapters of a run.

    Args:
        run: The run.
        lora: Of rank 1 or more.
        change_start: As the stage's ``Learning`` has it.

    Raises:
        CheckpointError: There is no base model.
        ConfigError: The adapters cannot be trained with these settings.
    """
    layers = target_layers(run.model, lora.targets)
    if run.start.path is None or run.start.state:
        raise ConfigError(
            "an adapter is trained on the weights of a model, as they are",
            where="lora.rank",
            fix="Give start.path, the base model, and leave out start.state.",
        )
    if run.precision == "fp8":
        raise ConfigError(
            "the layers that have adapters multiply in 16 bits",
            where="precision fp8",
            fix="Set precision=bf16; lora.base_weights=int8 saves memory.",
        )
    if lora.base_weights == "int8":
        require_int8_base(run)
    if lora.dropout and run.layout.tp > 1:
        raise ConfigError(
            "the ranks of tensor parallelism would each drop other inputs of one adapter",
            where="lora.dropout",
            fix="Set lora.dropout=0 or layout.tp=1.",
        )
    tokenizer = load_tokenizer(run.data.tokenizer) if run.data.tokenizer else integers(0)
    base = open_start(run.start.path, tokenizer, vocab_size=run.model.vocab_size)
    with quiet():
        changed = change_start(base) if change_start else base
    if changed.weights is not base.weights:
        raise ConfigError(
            f"the chat template adds {changed.tokenizer.vocab_size - base.tokenizer.vocab_size} tokens, whose"
            " rows would stay as they begin, all alike: adapters leave embedding and head as they are",
            where="lora.rank",
            fix="Set stage.template=text, which adds none, or finetune without lora.rank, and begin with"
            " the model that comes of it.",
        )
    about = AdapterAbout(
        base=str(base.source.resolve()),
        base_fingerprint=base_fingerprint(base),
        rank=lora.rank,
        alpha=lora.alpha,
        rslora=lora.rslora,
        dropout=lora.dropout,
    )
    names = ", ".join(layer.split(".", 2)[2] for layer in layers)
    trained = _num_trained(run.model, lora)
    share = trained / num_parameters(run.model)
    return Adapters(
        add=partial(add_adapters, config=run.model, lora=lora),
        fill=partial(fill_adapters, seed=run.seed),
        about=about,
        fact=f"adapters of rank {lora.rank} on {names}: {human_count(trained)} parameters are trained,"
        f" {share:.2%} of the model's",
    )


def _num_trained(config: ModelConfig, lora: LoraConfig) -> int:
    model = build_model(config, device="meta")
    add_adapters(model, config, lora)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


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


def fill_adapters(model: nn.Module, *, seed: int) -> None:
    """Gives adapters their initial values: A uniform as PEFT draws it, B zero, so that nothing changes yet.

    Args:
        model: With adapters.
        seed: Of all values, which depend on nothing else but a parameter's name and shape.
    """
    a, b = ADAPTER_PARAMETERS
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(a):
                place(parameter, initial_a(name, tuple(parameter.shape), seed))
            elif name.endswith(b):
                place(parameter, torch.zeros(parameter.shape))


def with_adapters_merged(parameters: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Returns the weights of a model in memory with its adapters added, in fp32; others are as they are.

    Args:
        parameters: By name, of weights and adapters.
        scale: s.
    """
    a, b = ADAPTER_PARAMETERS
    found = {name: tensor for name, tensor in parameters.items() if not name.endswith((a, b))}
    for name, b_OR in parameters.items():
        if name.endswith(b):
            layer = name.removesuffix(b)
            low_OI = (b_OR.float() @ parameters[layer + a].float()).mul_(scale)
            found[f"{layer}.weight"] = low_OI.add_(as_float(parameters[f"{layer}.weight"]))
    return found


def initial_a(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Draws A [R, I] from U(-1 / sqrt(I), 1 / sqrt(I)): Kaiming's for a leaky ReLU of slope sqrt(5)."""
    digest = hashlib.sha256(f"{seed}/{name}/{list(shape)}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    bound = 1 / math.sqrt(shape[1])
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
