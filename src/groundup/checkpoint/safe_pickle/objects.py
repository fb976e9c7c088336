"""Defines what a pickle may name, call and change, and the inert objects that result.

Nothing is looked up by its name: a name stays a name, tensors and storages are descriptions, the few
containers that checkpoints need are made from a list, and objects that Megatron-LM leaves in its ``args``
(enums, paths, random states) become stubs. Nothing is allocated for a size that a pickle claims.
"""

import argparse
import dataclasses
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

_STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "UntypedStorage": torch.uint8,
}
# Megatron-LM's args hold objects of these, which nothing here needs: their classes become stubs.
_INERT_MODULES = {
    *("apex", "deepspeed", "megatron", "transformer_engine"),
    *("datetime", "numpy", "pathlib", "signal", "torch"),
}
# Beside classes, which begin with a capital letter, these may be "called", to a stub.
_INERT_CALLS = {
    *("_codecs.encode", "_io.BytesIO", "builtins.bytearray", "builtins.complex", "collections.deque"),
    *("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone"),
    *("functools.partial", "types.SimpleNamespace", "numpy.dtype", "numpy.ndarray"),
    *("numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar"),
    *("numpy._core.multiarray._reconstruct", "numpy._core.multiarray.scalar"),
    *("numpy.random._pickle.__randomstate_ctor", "numpy.random._pickle.__bit_generator_ctor"),
    *("torch.device", "torch.serialization._get_layout"),
}
# Named as what a defaultdict begins with, or looked up in by older enums; never called.
_INERT_NAMES = {f"builtins.{name}" for name in ("bool", "dict", "float", "getattr", "int", "list", "str")}
_SHOWN = 200


class ForbiddenNameError(Exception):
    """A pickle names a function or class that no checkpoint needs."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Name:
    """A function or class that a pickle names, which is not looked up."""

    module: str
    attribute: str

    def __str__(self) -> str:
        text = f"{self.module}.{self.attribute}"
        return text if text.isprintable() and len(text) <= _SHOWN else repr(text[:_SHOWN])


@dataclasses.dataclass(eq=False, slots=True)
class Stub:
    """An object of a class that is not known here: it keeps what it was made from and does nothing.

    Attributes:
        name: Its class, or the function that would have made it.
        arguments: Arguments of the call.
        state: What the pickle set on it.
    """

    name: Name
    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __repr__(self) -> str:
        plain = [value if isinstance(value, str | int | float) else ... for value in self.arguments]
        return f"{self.name.attribute.rpartition('.')[2]}({', '.join(map(repr, plain))})"


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class StorageInPickle:
    """What a pickle claims of a storage, unchecked; ``key`` finds its bytes in the file."""

    key: str
    dtype: torch.dtype
    num_elements: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TensorInPickle:
    """What a pickle claims of a tensor, of which only the types are checked; ``offset`` counts elements."""

    storage: StorageInPickle
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def resolve_name(name: Name) -> Name | torch.dtype:
    """GLOBAL: returns a dtype for the names of dtypes and storages, else the name itself.

    Raises:
        ForbiddenNameError: It is neither of a list nor of a module whose objects are kept as stubs.
    """
    if name.module in {"torch", "torch.cuda", "torch.storage"} and name.attribute in _STORAGE_DTYPES:
        return _STORAGE_DTYPES[name.attribute]
    # Not getattr, by which torch would import some of its modules.
    if name.module == "torch" and isinstance(dtype := vars(torch).get(name.attribute), torch.dtype):
        return dtype
    full = f"{name.module}.{name.attribute}"
    known = full in _MAKERS or full in _INERT_CALLS or full in _INERT_NAMES
    if not known and name.module.partition(".")[0] not in _INERT_MODULES:
        raise ForbiddenNameError(str(name))
    return name


def call(function: Any, arguments: Any) -> Any:
    """REDUCE and NEWOBJ: returns the result of a call; any call that no checkpoint needs is refused.

    Raises:
        ForbiddenNameError: It is not on the list.
        pickle.UnpicklingError: The arguments are not what the function takes.
    """
    if not isinstance(function, Name) or type(arguments) is not tuple:
        raise pickle.UnpicklingError(f"calls {kind_of(function)}")
    full = f"{function.module}.{function.attribute}"
    if make := _MAKERS.get(full):
        return make(*arguments)
    if full in _INERT_CALLS or _is_class_of_inert_module(function):
        return Stub(function, arguments)
    if full == "builtins.getattr":  # how Python 3.11.2 saves enums
        owner, member = arguments
        if isinstance(owner, Name) and _is_class_of_inert_module(owner) and type(member) is str:
            return Stub(owner, (member,))
    if full.startswith("torch._utils._rebuild_"):
        raise pickle.UnpicklingError(f"a tensor of a kind that is not supported ({full})")
    raise ForbiddenNameError(str(function))


def _is_class_of_inert_module(name: Name) -> bool:
    last = name.attribute.rpartition(".")[2].lstrip("_")
    return name.module.partition(".")[0] in _INERT_MODULES and last[:1].isupper()


def extend(container: Any, items: list[Any]) -> None:
    """APPEND and APPENDS: only lists grow."""
    if type(container) is list:
        container.extend(items)
    elif not isinstance(container, Stub):  # a stub drops them
        raise pickle.UnpicklingError(f"appends to {kind_of(container)}")


def set_items(container: Any, items: list[Any]) -> None:
    """SETITEM and SETITEMS: only dicts take keys and values, which alternate in ``items``."""
    if type(container) is dict:
        container.update(zip(map(as_key, items[::2]), items[1::2], strict=True))
    elif not isinstance(container, Stub):
        raise pickle.UnpicklingError(f"sets items of {kind_of(container)}")


def set_state(thing: Any, state: Any) -> None:
    """BUILD: sets a state, which only stubs keep whole, and namespaces where it has names."""
    if isinstance(thing, Stub):
        thing.state = state
    elif type(thing) is argparse.Namespace and type(state) is dict and all(type(key) is str for key in state):
        vars(thing).update(state)
    elif type(thing) is not dict:  # of a state_dict it is the versions of modules
        raise pickle.UnpicklingError(f"changes {kind_of(thing)} after it was made")


def as_key(key: Any) -> Any:
    """Returns a key of a dict; nested ones are refused, since hashing them has no bound of depth or time."""
    for part in key if type(key) is tuple else (key,):
        if not isinstance(part, str | int | float | bytes | torch.dtype | Stub | Name | None):
            raise pickle.UnpicklingError(f"{kind_of(part)} in a key")
    return key


def storage_of(pid: Any) -> StorageInPickle:
    """BINPERSID: returns the storage that a persistent id describes."""
    if type(pid) is not tuple or len(pid) not in (5, 6) or pid[0] != "storage":
        raise pickle.UnpicklingError("a persistent id that is not a storage's")
    dtype, key, _, num_elements = pid[1:5]
    if not isinstance(dtype, torch.dtype) or type(key) is not str or not _are_whole(num_elements):
        raise pickle.UnpicklingError("a storage without type, key or length")
    if not key.isprintable() or len(key) > _SHOWN:
        raise pickle.UnpicklingError(f"a storage of the key {key[:_SHOWN]!r}")
    if pid[5:] not in ((), (None,)):
        raise pickle.UnpicklingError(f"storage {key} is a view of another, as torch before 0.4 saved")
    return StorageInPickle(key, dtype, num_elements)


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> TensorInPickle:
    if not isinstance(storage, StorageInPickle) or type(shape) is not tuple or type(stride) is not tuple:
        raise pickle.UnpicklingError("a tensor without storage, shape or stride")
    if not _are_whole(offset, *shape, *stride) or len(shape) != len(stride):
        raise pickle.UnpicklingError("a tensor whose offset, shape or stride are not natural numbers")
    return TensorInPickle(storage, storage.dtype, offset, shape, stride)


def _tensor_of_dtype(
    storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_: Any
) -> TensorInPickle:
    if not isinstance(dtype, torch.dtype):
        raise pickle.UnpicklingError("a tensor without dtype")
    return dataclasses.replace(_tensor(storage, offset, shape, stride), dtype=dtype)


def _parameter(data: Any, *_: Any) -> TensorInPickle:
    if not isinstance(data, TensorInPickle):
        raise pickle.UnpicklingError(f"a parameter of {kind_of(data)}")
    return data


def _with_attributes(function: Any, kind: Any, arguments: Any, _state: Any) -> TensorInPickle:
    """A tensor on which attributes were set, as on Megatron-LM's fp32 weights; they are left out."""
    if not isinstance(kind, Name) or kind.attribute not in ("Tensor", "Parameter"):
        raise pickle.UnpicklingError(f"a tensor of a kind that is not supported ({kind})")
    return _parameter(call(function, arguments))


def _dict(*arguments: Any) -> dict[Any, Any]:
    """An OrderedDict, defaultdict or Counter begins empty, with pairs, or with another dict."""
    found: dict[Any, Any] = {}
    for argument in arguments:
        pairs = argument.items() if type(argument) is dict else argument if type(argument) is list else ()
        for key, value in pairs:
            found[as_key(key)] = value
    return found


def _items(items: Any = ()) -> Iterable[Any]:
    if type(items) not in (list, tuple):
        raise pickle.UnpicklingError(f"a container of {kind_of(items)}")
    return items  # type: ignore[no-any-return]  # as was just checked


_MAKERS: Mapping[str, Callable[..., Any]] = {
    "argparse.Namespace": argparse.Namespace,
    "builtins.frozenset": lambda items=(): frozenset(map(as_key, _items(items))),
    "builtins.set": lambda items=(): set(map(as_key, _items(items))),
    "collections.Counter": _dict,
    "collections.OrderedDict": _dict,
    "collections.defaultdict": _dict,
    "torch.Size": lambda items=(): tuple(_items(items)),
    "torch._tensor._rebuild_from_type_v2": _with_attributes,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_dtype,
}


def _are_whole(*values: Any) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def kind_of(thing: Any) -> str:
    """Describes a thing for a message."""
    return str(thing) if isinstance(thing, Name) else f"an object of type {type(thing).__name__}"
