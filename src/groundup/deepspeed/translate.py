"""Translates DeepSpeed's config into settings of a training run."""

import difflib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundup.core.config_sources import nearest
from groundup.deepspeed.batch_sizes import put_batch_sizes
from groundup.deepspeed.deepspeed_settings import Settings
from groundup.deepspeed.without_counterpart import note_the_rest

_ADAMS = ("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam")
_DEGREES = {"tensor_parallel.autotp_size": "tp", "sequence_parallel_size": "cp"}


def translate(path: Path, *, ranks: int | None = None, assumed: int | None = None) -> Settings:
    """Reads a DeepSpeed config.

    A section that is there stands whole, with DeepSpeed's defaults for what it leaves out; a value "auto",
    and what is not there, stays open.

    Args:
        path: The JSON file.
        ranks: Data-parallel ranks of the run, where batch sizes need them; None where they are not known.
        assumed: As many as are taken then where the sizes do not tell; None to refuse.

    Raises:
        ConfigError: The file is damaged, contradicts itself, has unknown keys, or an optimizer or a schedule
            that groundup has not.
    """
    settings = Settings.of(path)
    put_batch_sizes(settings, ranks, assumed)
    _precision(settings)
    _layout(settings)
    _optimizer(settings)
    _scheduler(settings)
    _others(settings)
    note_the_rest(settings)
    return settings


def ranks_of_a_copy(path: Path, layout: Mapping[str, Any]) -> int:
    """Ranks that work on the same samples, by a DeepSpeed config and else by the layout of a YAML file."""
    settings = Settings.of(path)
    degrees = [settings.whole(theirs) or layout.get(ours) or 1 for theirs, ours in _DEGREES.items()]
    return math.prod(degrees) * (layout.get("pp") or 1)


def _precision(settings: Settings) -> None:
    if settings.value("bfloat16") is not None:
        settings.refuse("bfloat16", "is the old name", 'Write "bf16".')
    sections = [name for name in ("fp16", "bf16", "torch_autocast") if settings.section(name)]
    enabled = [name for name in sections if settings.flag(f"{name}.enabled")]
    if {"fp16", "bf16"} <= set(enabled):
        settings.refuse("bf16.enabled", "and fp16.enabled are both true", "Choose one.")
    for name in sections:
        if settings.is_auto(f"{name}.enabled"):
            settings.put("precision", name, of=f"{name}.enabled")
    if "torch_autocast" in enabled:
        dtype = settings.value("torch_autocast.dtype", "bfloat16")
        formats = {"bfloat16": "bf16", "float16": "fp16"}
        if dtype not in formats:
            settings.refuse(
                "torch_autocast.dtype", f"is {dtype!r}, and should be one of {', '.join(formats)}"
            )
        settings.put("precision", formats[dtype], of="torch_autocast.dtype")
    for name in enabled:
        if name != "torch_autocast":
            settings.put("precision", name, of=f"{name}.enabled")
    if {"fp16", "bf16"} & set(sections) and not enabled and "precision" not in settings.left_open:
        settings.put("precision", "fp32", of=f"{sections[0]}.enabled")
    if "fp16" in sections and (settings.is_auto("fp16.enabled") or "fp16" in enabled):
        _loss_scale(settings)
    if settings.flag("bf16.bf16_optimizer_states") and "bf16" in enabled:
        settings.put("optimizer.state_dtype", "bf16", of="bf16.bf16_optimizer_states")


def _loss_scale(settings: Settings) -> None:
    fixed = settings.number("fp16.loss_scale", 0)
    power = settings.whole("fp16.initial_scale_power", 16)
    least = settings.number("fp16.min_loss_scale", 1)
    window, hysteresis = (
        settings.whole("fp16.loss_scale_window", 1000, least=1),
        settings.whole("fp16.hysteresis", 2, least=1),
    )
    if fixed:
        settings.put("loss_scale.initial", float(fixed), of="fp16.loss_scale")
        settings.put("loss_scale.minimum", float(fixed), of="fp16.loss_scale")
        settings.put("loss_scale.window", 2**62, of="fp16.loss_scale")
        settings.note("fp16.loss_scale", "an overflow at a fixed scale ends the run: there is no lower one")
        return
    settings.put(
        "loss_scale.initial", 2.0**power if power is not None else None, of="fp16.initial_scale_power"
    )
    settings.put("loss_scale.minimum", least, of="fp16.min_loss_scale")
    settings.put("loss_scale.window", window, of="fp16.loss_scale_window")
    settings.put("loss_scale.hysteresis", hysteresis, of="fp16.hysteresis")


def _layout(settings: Settings) -> None:
    key = "zero_optimization"
    if isinstance(settings.value(key), bool):  # of DeepSpeed's first year
        settings.put("layout.zero", int(settings.value(key)), of=key)
    elif settings.section(key):
        stage = settings.whole(f"{key}.stage", 0)
        if stage is not None and stage > 3:
            settings.refuse(f"{key}.stage", f"is {stage}, and should be 0, 1, 2 or 3")
        settings.put("layout.zero", stage, of=f"{key}.stage")
        shard = settings.value(f"{key}.mics_shard_size", -1)
        if shard != -1:
            shard = settings.whole(f"{key}.mics_shard_size", least=1)
            settings.put("layout.shard", shard, of=f"{key}.mics_shard_size")
    for theirs, ours in _DEGREES.items():
        degree = settings.whole(theirs, least=0)
        if degree or settings.is_auto(theirs):
            settings.put(f"layout.{ours}", degree, of=theirs)
    dtype = settings.value("communication_data_type")
    if dtype in ("bf16", "bfp16", "bfloat16", "fp32", "auto"):
        settings.put(
            "layout.reduce_dtype", "fp32" if dtype == "fp32" else "bf16", of="communication_data_type"
        )
    elif dtype is not None:
        settings.note(
            "communication_data_type", "gradients are added up in fp32, or bf16 (layout.reduce_dtype)"
        )
    if settings.flag("fp32_allreduce"):
        settings.put("layout.reduce_dtype", "fp32", of="fp32_allreduce")


def _optimizer(settings: Settings) -> None:
    if not settings.section("optimizer"):
        return
    settings.section("optimizer.params")
    kind, params = settings.value("optimizer.type", ""), "optimizer.params"
    name = str(kind).lower()
    if name not in (*_ADAMS, "sgd"):
        close = difflib.get_close_matches(name, ("adam", "adamw", "sgd"), n=1, cutoff=0.8)
        settings.refuse(
            "optimizer.type",
            f"is {kind!r}, and has no counterpart with the same updates",
            (f"Did you mean {close[0]!r}? " if close else "")
            + "There are Adam, AdamW and SGD; optimizer.kind=muon has units of its own.",
        )
    settings.put("optimizer.kind", "sgd" if name == "sgd" else "adamw", of="optimizer.type")
    settings.put("optimizer.lr", settings.number(f"{params}.lr", 1e-3), of=f"{params}.lr")
    decay = settings.number(f"{params}.weight_decay", 0.0)
    if name == "sgd":
        for key in ("nesterov", "dampening", "weight_decay"):
            if settings.value(f"{params}.{key}"):
                settings.refuse(f"{params}.{key}", "has no counterpart: SGD is plain, with momentum")
        settings.put(
            "optimizer.momentum", settings.number(f"{params}.momentum", 0.0), of=f"{params}.momentum"
        )
        return
    if decay and settings.value(f"{params}.adam_w_mode", name != "torchadam") is False:
        settings.refuse(
            f"{params}.adam_w_mode",
            "is false: weight decay as L2 regularisation has no counterpart",
            "Leave it out (decoupled weight decay), or set weight_decay to 0.",
        )
    betas = settings.value(f"{params}.betas", [0.9, 0.999])
    if betas != "auto" and (not isinstance(betas, list) or len(betas) != 2):
        settings.refuse(f"{params}.betas", f"is {betas!r}, and should be two numbers")
    for index in (0, 1):
        settings.put(f"optimizer.beta{index + 1}", betas[index], of=f"{params}.betas")
    settings.put("optimizer.eps", settings.number(f"{params}.eps", 1e-8), of=f"{params}.eps")
    settings.put("optimizer.weight_decay", decay, of=f"{params}.weight_decay")
    if decay:
        settings.note(f"{params}.weight_decay", "biases and norms are not decayed", is_harmless=True)


def _scheduler(settings: Settings) -> None:
    if not settings.section("scheduler"):
        return
    settings.section("scheduler.params")
    kind = str(settings.value("scheduler.type", ""))
    kinds: dict[str, Callable[[Settings], None]] = {
        "WarmupLR": _constant,
        "WarmupDecayLR": _linear,
        "WarmupCosineLR": _cosine,
    }
    if kind not in kinds:
        settings.refuse(
            "scheduler.type",
            f"is {kind!r}, and has no counterpart",
            " ".join(filter(None, [nearest(kind, kinds), f"There are {', '.join(kinds)}."])),
        )
    params = "scheduler.params"
    steps = settings.whole(f"{params}.warmup_num_steps", 1000)
    settings.put("warmup.kind", "steps", of=f"{params}.warmup_num_steps")
    settings.put("warmup.steps", steps, of=f"{params}.warmup_num_steps")
    rise = settings.value(f"{params}.warmup_type", "log")
    if rise != "linear" and steps:
        settings.note(
            f"{params}.warmup_type", f"the warm-up rises linearly, not by {rise!r} (DeepSpeed's default)"
        )
    kinds[kind](settings)


def _constant(settings: Settings) -> None:
    settings.put("schedule.kind", "constant", of="scheduler.type")
    _peak(settings)


def _linear(settings: Settings) -> None:
    settings.put("schedule.kind", "linear", of="scheduler.type")
    settings.put("schedule.min_ratio", 0.0, of="scheduler.type")
    _horizon(settings)
    _peak(settings)


def _cosine(settings: Settings) -> None:
    settings.put("schedule.kind", "cosine", of="scheduler.type")
    key = "scheduler.params.cos_min_ratio"
    settings.put("schedule.min_ratio", settings.number(key, 1e-4), of=key)
    _horizon(settings)
    _from_zero(settings, "warmup_min_ratio")


def _peak(settings: Settings) -> None:
    """Takes the learning rate of the schedule, which replaces the optimizer's."""
    key = "scheduler.params.warmup_max_lr"
    default = settings.number("optimizer.params.lr")
    peak = settings.number(key, default, least=0)
    if settings.value(key) is not None:
        settings.left_open.pop("optimizer.lr", None)
        settings.put("optimizer.lr", peak, of=key)
        if peak and default and peak != default:
            settings.note(
                key, f"is the peak; optimizer.params.lr {default:g} has no effect", is_harmless=True
            )
    _from_zero(settings, "warmup_min_lr")


def _horizon(settings: Settings) -> None:
    key = "scheduler.params.total_num_steps"
    if settings.value(key) is None:
        settings.refuse(key, "is missing", "Give the number of steps at whose end the schedule ends.")
    settings.put("schedule_steps", settings.whole(key, least=1), of=key)


def _from_zero(settings: Settings, name: str) -> None:
    key = f"scheduler.params.{name}"
    begin = settings.number(key, 0.0)
    if begin:
        settings.note(key, f"the warm-up rises from 0, not from {begin:g}")


def _others(settings: Settings) -> None:
    names = ("gradient_clipping", "optimizer.params.max_grad_norm")
    clipping = next((name for name in names if settings.value(name) is not None), None)
    if clipping:
        settings.put("clip_grad_norm", settings.number(clipping), of=clipping)
    else:
        settings.note(
            "gradient_clipping", "is not given, so that DeepSpeed does not clip; clip_grad_norm is 1 here"
        )
    is_silent = settings.value("steps_per_print") in ("inf", math.inf)
    interval = None if is_silent else settings.whole("steps_per_print")
    if interval and interval < 2**31:  # a larger one silences it too
        settings.put("log.interval", interval, of="steps_per_print")
    accumulation = settings.value("data_types.grad_accum_dtype", "fp32")
    if accumulation != "fp32":
        settings.note("data_types.grad_accum_dtype", f"gradients are added up in fp32, not {accumulation}")
    if settings.section("tensorboard") and settings.flag("tensorboard.enabled"):
        settings.put("log.tensorboard", True, of="tensorboard.enabled")
    if settings.section("wandb") and settings.flag("wandb.enabled"):
        settings.put("log.wandb", True, of="wandb.enabled")
        settings.put("log.project", settings.value("wandb.project", "deepspeed"), of="wandb.project")
    section = "activation_checkpointing"
    if settings.section(section):
        wanted = [
            settings.flag(f"{section}.{name}") for name in ("partition_activations", "cpu_checkpointing")
        ]
        if any(wanted) or settings.whole(f"{section}.number_checkpoints"):
            settings.put("recompute.mode", "full", of=section)
        else:
            settings.note(
                section, "the program switches it on, not this section: see recompute.mode", is_harmless=True
            )
        settings.read -= {f"{section}.cpu_checkpointing"}
