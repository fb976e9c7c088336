"""From tensors that are spread over ranks (DTensor) to whole ones; without ranks both are the same."""

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor as it is without layout; all ranks that hold a part of it must call this together."""
    full_tensor = getattr(tensor, "full_tensor", None)  # of a DTensor, whose module takes a while to import
    return full_tensor() if full_tensor else tensor


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor; to be called without autograd."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local else tensor
