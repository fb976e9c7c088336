"""The device of a run and the number formats that its hardware has; fp16's dynamic loss scale."""

import contextlib
import resource
import sys
from typing import Any, Literal

import torch

from groundup.core.config import config
from groundup.core.config_class import Positive, PositiveFloat
from groundup.core.errors import MachineError

PrecisionName = Literal["auto", "fp32", "bf16", "fp16", "fp8"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
FORMATS: tuple[Literal["bf16", "fp16", "fp8"], ...] = ("bf16", "fp16", "fp8")
"""Beside fp32, which all hardware has."""

PEAK_TFLOPS = {
    # Dense 16-bit tensor-core rates with fp32 accumulation, from the makers' data sheets.
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "A40": 149.7,
    "A10": 125.0,
    "L4": 121.0,
    "V100": 125.0,
    "T4": 65.0,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
    "MI300X": 1307.0,
    "MI250X": 383.0,
}


def choose_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Returns the device; ``auto`` is the GPU if there is one, else the CPU.

    Raises:
        MachineError: A GPU was asked for and there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU-only build"
        raise MachineError(
            f"no GPU is usable: torch {torch.__version__} is {built}",
            where="device cuda",
            fix="Set device=cpu, or install a CUDA build of torch and check `nvidia-smi`.",
        )
    return torch.device(name)


def describe_device(device: torch.device) -> str:
    """Describes the device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({torch.get_num_threads()} threads)"


def peak_memory_bytes(device: torch.device) -> int:
    """Returns the peak of memory: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@config
class LossScaleConfig:
    """Dynamic loss scaling for fp16, by Megatron-LM's rule.

    Attributes:
        initial: First scale, 2^32 as in Megatron-LM.
        minimum: Lowest scale; an overflow at it ends the training.
        window: Steps without overflow after which the scale doubles.
        hysteresis: Overflows until the scale halves; restored after a full window.
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
        """Returns what a checkpoint keeps."""
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
    """A number format on a device: matrix products run in ``dtype``, weights and sums stay in fp32.

    fp8 is bf16 but for the linear layers of a model that trains (``float8_linear``).
    """

    def __init__(self, name: Literal["fp32", "bf16", "fp16", "fp8"], device: torch.device) -> None:
        self.name = name
        self.dtype = _DTYPES[name]
        self.device = device

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context in which the model runs."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)


def choose_precision(name: PrecisionName, device: torch.device) -> Precision:
    """Returns the format; ``auto`` is the best that the hardware has: bf16, else fp16 on a GPU, else fp32.

    fp8 is never chosen: it rounds more than the others.

    Raises:
        MachineError: The hardware lacks the format; the message names those that it has.
    """
    reasons = {format_: lacks(format_, device) for format_ in FORMATS}
    if name == "auto":
        name = "bf16" if not reasons["bf16"] else "fp16" if not reasons["fp16"] else "fp32"
    if name != "fp32" and reasons[name]:
        available = [format_ for format_ in FORMATS if not reasons[format_]] + ["fp32"]
        raise MachineError(
            f"{reasons[name]}",
            where=f"precision {name}",
            fix=f"Set precision to auto, or {' or '.join(available)}.",
        )
    return Precision(name, device)


def peak_flops(precision: Precision) -> float:
    """Returns the floating-point operations a second in the device's data sheet.

    0 where that is unknown, and of fp8, in which some products run and some do not.
    """
    if precision.device.type != "cuda" or precision.name not in ("bf16", "fp16"):
        return 0.0
    name = torch.cuda.get_device_name(precision.device)
    for key, tflops in PEAK_TFLOPS.items():
        if all(word in name.split() or word in name for word in key.split()):
            return tflops * 1e12
    return 0.0


def lacks(name: str, device: torch.device) -> str:
    """Returns why the device does not support a format in hardware, or an empty string."""
    if device.type == "cuda":
        if name == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return f"{torch.cuda.get_device_name(device)} has no bf16 units (they came with Ampere)"
        if name == "fp8" and (torch.version.hip or torch.cuda.get_device_capability(device) < (8, 9)):
            return f"{torch.cuda.get_device_name(device)} has no fp8 units (they came with Ada and Hopper)"
        return ""
    if device.type == "cpu":
        has = torch.cpu.get_capabilities()
        if name == "bf16" and not (has.get("avx512_bf16") or has.get("amx_bf16") or has.get("bf16")):
            return "this CPU has no bf16 instructions (AVX512-BF16 or AMX)"
        if name == "fp16" and not has.get("amx_fp16"):
            return "this CPU has no fp16 matrix units (AMX-FP16)"
        if name == "fp8":
            return "CPUs do not multiply in fp8; GPUs do from Ada and Hopper on"
        return ""
    return f"{name} is untested on {device.type}"
