"""Between tensors that are spread over ranks (DTensor) and whole ones; without ranks both are the same."""

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor as it is without layout; all ranks that hold a part of it must call this together."""
    full_tensor = getattr(tensor, "full_tensor", None)  # of a DTensor, whose module takes a while to import
    return full_tensor() if full_tensor else tensor


def placed_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, the same on all ranks, spread as another is; a scalar stays as it is."""
    tensor = tensor.to(like.device)
    if not hasattr(like, "placements") or tensor.ndim != like.ndim:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
