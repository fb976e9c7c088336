"""Writes files as ``torch.save`` does, without having their tensors in memory together."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LazyTensor
from groundup.checkpoint.safe_pickle.unpickle import storage_offsets
from groundup.checkpoint.safetensors import bytes_of


def write_torch(path: Path, content: Mapping[str, Any], on_write: Callable[[int], None] | None) -> None:
    """Writes a file of ``torch.save``: first with room for its lazy tensors, then these one by one.

    A tensor that stands in the content twice is stored once, as ``torch.save`` does.
    """
    rooms: dict[int, tuple[LazyTensor, Tensor]] = {}

    def with_room(value: Any) -> Any:
        if isinstance(value, LazyTensor):
            empty = torch.empty(value.shape, dtype=value.dtype)  # never touched: takes no memory
            return rooms.setdefault(id(value), (value, empty))[1]
        if isinstance(value, dict):
            return {key: with_room(item) for key, item in value.items()}
        return [with_room(item) for item in value] if isinstance(value, list) else value

    with torch.serialization.skip_data():
        torch.save(with_room(dict(content)), path)
    offsets = storage_offsets(path)
    assert len(offsets) == len(rooms), "one storage for each tensor, numbered in their order"
    with path.open("r+b") as file:
        for number, (tensor, _) in enumerate(rooms.values()):
            offset, size = offsets[str(number)]
            values = tensor.read()
            assert (tuple(values.shape), size) == (tensor.shape, tensor.size_bytes), "as was made room for"
            file.seek(offset)
            file.write(bytes_of(values))
            if on_write:
                on_write(size)
