"""Tensors that are spread over ranks (DTensor): to whole ones and back; plain tensors pass unchanged.

The module of DTensor takes a while to import, and most commands need none.
"""

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """Returns the whole tensor; collective over the ranks that hold parts of it."""
    full_tensor = getattr(tensor, "full_tensor", None)
    return full_tensor() if full_tensor else tensor


def local(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor; to be called without autograd."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local else tensor


def place(parameter: Tensor, value: Tensor) -> None:
    """Copies a whole value, the same on all ranks, to this rank's part of a parameter."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        parameter.copy_(value)
        return
    from torch.distributed.tensor import distribute_tensor

    spread = distribute_tensor(value.to(parameter.device), mesh, parameter.placements, src_data_rank=None)  # type: ignore[attr-defined]
    local(parameter).copy_(local(spread))
