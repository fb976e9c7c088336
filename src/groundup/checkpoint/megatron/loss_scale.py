"""The dynamic loss scale of fp16, as Megatron-LM keeps it beside the optimizer's state."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.lazy import in_memory


def read_loss_scale(content: Mapping[str, Any]) -> dict[str, Any]:
    """The state of fp16's loss scale, as ours names it; empty where there is none or it is constant."""
    optimizer = content.get("optimizer")
    found = optimizer.get("grad_scaler") if isinstance(optimizer, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("scale"), Tensor | float | int):
        return {}
    numbers = [found.get(key) for key in ("growth_tracker", "hysteresis_tracker")]
    if not all(type(number) is int and number >= 0 for number in numbers):
        return {}
    scale = found["scale"]
    value = float(scale.reshape(-1)[0]) if isinstance(scale, Tensor) and scale.numel() else scale
    if not isinstance(value, float | int) or not 0 < value < math.inf:
        return {}
    return {"scale": float(value), "steps_without_overflow": numbers[0], "hysteresis": numbers[1]}


def loss_scale_entry(loss_scale: Mapping[str, Any]) -> dict[str, Any]:
    """The ``grad_scaler`` of one rank's file; nothing where there is no loss scale."""
    if not loss_scale:
        return {}
    scaler = {
        "scale": in_memory(torch.tensor([loss_scale["scale"]])),
        "growth_tracker": loss_scale["steps_without_overflow"],
        "hysteresis_tracker": loss_scale["hysteresis"],
    }
    return {"grad_scaler": scaler}
