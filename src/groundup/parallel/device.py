"""The device that a run is on: which, how fast at its best, how much memory it has taken."""

import resource
import sys
from typing import Literal

import torch

from groundup.core.errors import MachineError

_PEAK_TFLOPS = {
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
    """Resolves ``auto``: the GPU where there is one, else the CPU.

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


def describe(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({torch.get_num_threads()} threads)"


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second that the maker states for a dtype; 0 where none is known."""
    if device.type != "cuda" or dtype == torch.float32:
        return 0.0
    name = torch.cuda.get_device_name(device)
    for key, tflops in _PEAK_TFLOPS.items():
        if all(word in name.split() or word in name for word in key.split()):
            return tflops * 1e12
    return 0.0


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory taken so far: of the GPU by tensors, of the host by the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
