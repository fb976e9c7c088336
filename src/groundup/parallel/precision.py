"""Number formats: which one the hardware really has, and fp16's dynamic loss scale."""

import contextlib
from typing import Any, Literal

import torch

from groundup.core.config import config
from groundup.core.config_class import Positive, PositiveFloat
from groundup.core.errors import MachineError

PrecisionName = Literal["auto", "fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@config
class LossScaleConfig:
    """Dynamic loss scaling for fp16, by Megatron-LM's rule.

    Attributes:
        initial: First scale, 2^32 as in Megatron-LM.
        minimum: Least scale; an overflow at it ends the training, since no scaling can mend it.
        window: Steps without overflow after which the scale doubles.
        hysteresis: Overflows that are forgiven before the scale halves; restored by a full window only.
    """

    initial: PositiveFloat = 2.0**32
    minimum: PositiveFloat = 1.0
    window: Positive = 1000
    hysteresis: Positive = 2


class LossScaler:
    """The scale by which a fp16 loss is multiplied before the backward pass."""

    def __init__(self, config: LossScaleConfig) -> None:
        self.config = config
        self.scale = config.initial
        self.steps_without_overflow = 0
        self.hysteresis = config.hysteresis

    def update(self, *, overflow: bool) -> None:
        """Adapts the scale after a step."""
        if not overflow:
            self.steps_without_overflow += 1
            if self.steps_without_overflow == self.config.window:
                self.steps_without_overflow = 0
                self.hysteresis = self.config.hysteresis
                self.scale *= 2
            return
        self.steps_without_overflow = 0
        self.hysteresis -= 1
        if self.hysteresis > 0:
            return
        self.scale = max(self.scale / 2, self.config.minimum)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "scale": self.scale,
            "steps_without_overflow": self.steps_without_overflow,
            "hysteresis": self.hysteresis,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint's state."""
        self.scale = state["scale"]
        self.steps_without_overflow = state["steps_without_overflow"]
        self.hysteresis = state["hysteresis"]


class Precision:
    """A number format on a device: matrix products run in ``dtype``, weights and sums stay in fp32."""

    def __init__(self, name: Literal["fp32", "bf16", "fp16"], device: torch.device) -> None:
        self.name = name
        self.dtype = _DTYPES[name]
        self.device = device

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which the model runs."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)


def choose_precision(name: PrecisionName, device: torch.device) -> Precision:
    """Resolves ``auto`` to the best format the hardware has: bf16, else fp16 on a GPU, else fp32.

    Raises:
        MachineError: The format asked for has no hardware here; says what has.
    """
    reasons = {format_: _missing(format_, device) for format_ in ("bf16", "fp16")}
    if name == "auto":
        name = "bf16" if not reasons["bf16"] else "fp16" if not reasons["fp16"] else "fp32"
    if name != "fp32" and reasons[name]:
        available = [format_ for format_ in ("bf16", "fp16") if not reasons[format_]] + ["fp32"]
        raise MachineError(
            f"{reasons[name]}",
            where=f"precision {name}",
            fix=f"Set precision to auto, or {' or '.join(available)}.",
        )
    return Precision(name, device)


def _missing(name: str, device: torch.device) -> str:
    """Why the device cannot compute in a format at speed; empty when it can."""
    if device.type == "cuda":
        if name == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return f"{torch.cuda.get_device_name(device)} has no bf16 units (they came with Ampere)"
        return ""
    if device.type == "cpu":
        has = torch.cpu.get_capabilities()
        if name == "bf16" and not (has.get("avx512_bf16") or has.get("amx_bf16") or has.get("bf16")):
            return "this CPU has no bf16 instructions (AVX512-BF16 or AMX)"
        if name == "fp16" and not has.get("amx_fp16"):
            return "this CPU has no fp16 matrix units (AMX-FP16)"
        return ""
    return f"{name} is untested on {device.type}"
