"""Explains a GPU that is out of memory: what takes it up, and the smallest change with which the step fits.

PyTorch's allocator knows the most that it has held; weights, gradients and optimizer state are counted; the
rest are activations, which shrink with the micro-batch.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from groundup.core.errors import MachineError
from groundup.parallel.dtensor import local
from groundup.train.config import TrainConfig
from groundup.train.state import TrainState

USABLE = 0.92
"""Share of a GPU's memory for tensors: the context, NCCL and fragmentation take the rest."""


class GpuMemory(NamedTuple):
    """Memory of a GPU in bytes: all of it, and the most that tensors of this process have taken so far."""

    capacity: int
    peak: int


def gpu_memory(device: torch.device) -> GpuMemory | None:
    """Asks PyTorch's allocator and the driver; None for a CPU."""
    if device.type != "cuda":
        return None
    _, capacity = torch.cuda.mem_get_info(device)
    return GpuMemory(capacity, torch.cuda.memory_stats(device)["allocated_bytes.all.peak"])


def explained(
    error: torch.OutOfMemoryError, state: TrainState, config: TrainConfig, memory: GpuMemory | None
) -> MachineError:
    """Returns the error with a table of this rank's memory and the change to make.

    Args:
        error: PyTorch's.
        state: Of the run, gradients included.
        config: Of the run.
        memory: From ``gpu_memory``; without it the advice goes by the settings alone.
    """
    parameters = list(state.model.parameters())
    held = {
        "weights": _bytes(parameters),
        "gradients": _bytes(parameter.grad for parameter in parameters if parameter.grad is not None),
        "optimizer state": _bytes(state.optimizers.state().values()),
    }
    if state.average:
        held["average of weights"] = _bytes(state.average.values.values())
    to_come = 0 if held["gradients"] else held["weights"]
    if not held["optimizer state"]:
        to_come += sum(
            local(parameter).numel() * dtype.itemsize
            for name, parameter in state.model.named_parameters()
            for dtype in config.optimizer.state_of(name, parameter).values()
        )
    capacity = memory.capacity if memory else 0
    activations = max(0, memory.peak - sum(held.values())) if memory else 0
    rows = [f"{name} {size / 1e9:.2f} GB" for name, size in held.items()]
    if activations:
        rows.append(f"activations and the rest at least {activations / 1e9:.2f} GB")
    if capacity:
        rows.append(f"the GPU has {capacity / 1e9:.2f} GB")
    return MachineError(
        f"the GPU's memory is full: {', '.join(rows)} ({str(error).split('. GPU')[0].rstrip('.')})",
        where=f"step {state.step + 1}",
        fix=_fix(config, fixed=sum(held.values()) + to_come, activations=activations, capacity=capacity),
    )


def _fix(config: TrainConfig, *, fixed: int, activations: int, capacity: int) -> str:
    """Returns the change that costs least: smaller micro-batches, then recomputation, then sharding."""
    room = USABLE * capacity - fixed
    if config.micro_batch_size > 1 and not (capacity and room <= 0):
        size = config.micro_batch_size // 2
        while size > 1 and capacity and activations * size / config.micro_batch_size > room:
            size //= 2
        # Whatever divides the micro-batch divides what the micro-batch divides.
        while config.micro_batch_size % size:
            size -= 1
        kept = f"global_batch_size stays {config.global_batch_size}, so results do not change"
        return f"Set micro_batch_size={size}: {kept}"
    if config.recompute.mode != "full" and not (capacity and room <= 0):
        mode = "selective" if config.recompute.mode == "none" else "full"
        return f"Set recompute.mode={mode}, which keeps fewer activations and changes no result"
    if config.layout.dp != 1 and config.layout.zero < 3:
        return "Set layout.zero=3, so that data-parallel ranks share weights, gradients and optimizer state"
    return "Spread the model over more ranks: layout.zero=3 with a larger layout.dp, or a larger layout.tp"


def _bytes(tensors: Iterable[Tensor]) -> int:
    own = (local(tensor.detach()) for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in own)
