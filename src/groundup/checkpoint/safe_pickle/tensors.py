"""Makes the tensors of a parsed pickle, each within the bytes of its storage in the file."""

import argparse
import dataclasses
import math
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.safe_pickle.objects import StorageInPickle, Stub, TensorInPickle

_DEEPEST = 100
_MOST_PARTS = 1_000_000
"""Most values in what a pickle describes, counted at each reference to them; ten more for each byte of it."""
_MOST_DIMS = 32
_LARGEST = 1 << 60

StorageOf = Callable[[StorageInPickle], torch.UntypedStorage]
"""Returns the bytes of a storage: as many as it claims, or raises."""


def with_tensors(tree: Any, storage_of: StorageOf, length: int) -> Any:
    """Returns what a pickle described, with its tensors.

    Args:
        tree: From ``read_pickle``.
        storage_of: Finds the bytes of a storage.
        length: Of the pickle in bytes, which bounds what it can describe.

    Raises:
        pickle.UnpicklingError: A tensor reaches beyond its storage, or values are nested without bound.
    """
    return _Finisher(storage_of, _MOST_PARTS + 10 * length).finish(tree, 0).value


@dataclasses.dataclass(frozen=True, slots=True)
class _Finished:
    """A value with its tensors, how many values it holds (each time it refers to them), and how deeply."""

    value: Any
    parts: int = 1
    height: int = 1


class _Finisher:
    """Replaces descriptions by tensors, and refuses nesting too deep for a recursive reader."""

    def __init__(self, storage_of: StorageOf, most_parts: int) -> None:
        self._storage_of = storage_of
        self._most_parts = most_parts
        self._storages: dict[str, tuple[torch.UntypedStorage, StorageInPickle]] = {}
        self._done: dict[int, _Finished | None] = {}  # by id; None while it is worked on

    def finish(self, thing: Any, depth: int) -> _Finished:
        """Returns the same with tensors; containers are made anew."""
        if not isinstance(thing, list | tuple | dict | argparse.Namespace | Stub | TensorInPickle):
            return _Finished(thing)
        if id(thing) not in self._done:
            self._done[id(thing)] = _Finished(thing) if isinstance(thing, Stub) else None
            self._done[id(thing)] = self._finish(thing, depth)
        found = self._done[id(thing)]
        if found is None:
            raise pickle.UnpicklingError("a container that holds itself")
        return found

    def _finish(self, thing: Any, depth: int) -> _Finished:
        if isinstance(thing, TensorInPickle):
            return _Finished(self._tensor(thing))
        keys: list[Any] = []
        if isinstance(thing, Stub):
            children: list[Any] = [thing.arguments, thing.state]
        elif isinstance(thing, argparse.Namespace | dict):
            entries = thing if isinstance(thing, dict) else vars(thing)
            keys, children = list(entries), list(entries.values())
        else:
            children = list(thing)
        if depth > _DEEPEST:
            raise pickle.UnpicklingError(f"values nested more than {_DEEPEST} deep")
        found = [self.finish(child, depth + 1) for child in children]
        parts = 1 + sum(child.parts for child in found)
        height = 1 + max((child.height for child in found), default=0)
        if height > _DEEPEST or parts > self._most_parts:
            raise pickle.UnpicklingError(f"values nested more than {_DEEPEST} deep, or without bound")
        values = [child.value for child in found]
        if isinstance(thing, Stub):
            thing.arguments, thing.state = values
            return _Finished(thing, parts, height)
        if isinstance(thing, argparse.Namespace):
            namespace = argparse.Namespace()
            vars(namespace).update(zip(keys, values, strict=True))
            return _Finished(namespace, parts, height)
        made = dict(zip(keys, values, strict=True)) if isinstance(thing, dict) else type(thing)(values)
        return _Finished(made, parts, height)

    def _tensor(self, thing: TensorInPickle) -> Tensor:
        storage = thing.storage
        if storage.key not in self._storages:
            self._storages[storage.key] = (self._storage_of(storage), storage)
        untyped, first = self._storages[storage.key]
        if (first.dtype, first.num_elements) != (storage.dtype, storage.num_elements):
            raise pickle.UnpicklingError(f"storage {storage.key} is said to be of two types or lengths")
        if len(thing.shape) > _MOST_DIMS or math.prod(filter(None, thing.shape)) > _LARGEST:
            raise pickle.UnpicklingError("a tensor of a shape that no tensor has")
        num_values = math.prod(thing.shape)
        last = thing.offset + sum((n - 1) * step for n, step in zip(thing.shape, thing.stride, strict=True))
        num_elements = untyped.nbytes() // thing.dtype.itemsize
        if num_values == 0:
            return torch.empty(thing.shape, dtype=thing.dtype)
        if last >= num_elements or num_values > num_elements:
            raise pickle.UnpicklingError(f"a tensor of shape {thing.shape} exceeds its storage")
        return torch.empty(0, dtype=thing.dtype).set_(untyped, thing.offset, thing.shape, thing.stride)
