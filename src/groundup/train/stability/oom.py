"""A full GPU, explained: what lies in its memory, and the smallest change with which the step fits.

PyTorch's message says how much it holds and what was asked for; weights, gradients and optimizer state are
counted; what is left are activations, which shrink with the micro-batch.
"""

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from groundup.core.errors import MachineError
from groundup.parallel.dtensor import local
from groundup.train.config import TrainConfig
from groundup.train.state import TrainState

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_AMOUNT = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"
_TRIED = re.compile(f"Tried to allocate {_AMOUNT}")
_CAPACITY = re.compile(f"total capacity of {_AMOUNT}")
_ALLOCATED = re.compile(f"{_AMOUNT} (?:memory )?is allocated by PyTorch")
_USABLE = 0.92
"""Of a GPU's memory: the context, NCCL and fragmentation take the rest."""


def explained(error: torch.OutOfMemoryError, state: TrainState, config: TrainConfig) -> MachineError:
    """The error with a table of this rank's memory and the change to make.

    Args:
        error: PyTorch's.
        state: Of the run, gradients included.
        config: Of the run.
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
    message = str(error)
    needed = _amount(_ALLOCATED, message) + _amount(_TRIED, message)
    capacity = _amount(_CAPACITY, message)
    activations = max(0, needed - sum(held.values()))
    rows = [f"{name} {size / 1e9:.2f} GB" for name, size in held.items()]
    if activations:
        rows.append(f"activations and the rest at least {activations / 1e9:.2f} GB")
    if capacity:
        rows.append(f"the GPU has {capacity / 1e9:.2f} GB")
    return MachineError(
        f"the GPU's memory is full: {', '.join(rows)} ({message.split('. GPU')[0].rstrip('.')})",
        where=f"step {state.step + 1}",
        fix=_fix(config, fixed=sum(held.values()) + to_come, activations=activations, capacity=capacity),
    )


def _fix(config: TrainConfig, *, fixed: int, activations: int, capacity: int) -> str:
    """The change that costs least: smaller micro-batches, then recomputation, then sharing."""
    room = _USABLE * capacity - fixed
    if config.micro_batch_size > 1 and not (capacity and room <= 0):
        size = config.micro_batch_size // 2
        while size > 1 and capacity and activations * size / config.micro_batch_size > room:
            size //= 2
        # Whatever divides the micro-batch divides what the micro-batch divides.
        while config.micro_batch_size % size:
            size -= 1
        kept = f"global_batch_size stays {config.global_batch_size}, so the losses do"
        return f"Set micro_batch_size={size}: {kept}"
    if config.recompute.mode != "full" and not (capacity and room <= 0):
        mode = "selective" if config.recompute.mode == "none" else "full"
        return f"Set recompute.mode={mode}, which keeps fewer activations and changes no result"
    if config.layout.dp != 1 and config.layout.zero < 3:
        return "Set layout.zero=3, so that the data-parallel ranks share weights, gradients and their state"
    return "Spread the model over more ranks: layout.zero=3 with a larger layout.dp, or a larger layout.tp"


def _bytes(tensors: Iterable[Tensor]) -> int:
    own = (local(tensor.detach()) for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in own)


def _amount(pattern: re.Pattern[str], message: str) -> int:
    """Bytes; 0 where the message does not say."""
    found = pattern.search(message)
    return round(float(found[1]) * _UNITS[found[2]]) if found else 0
