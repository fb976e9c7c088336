"""Interprets pickles without importing or calling anything that they name.

A pickle is a program for a machine with a stack. The opcodes are parsed by the standard library's
``pickletools`` and executed here, each by a line that touches only objects made by the same pickle;
``objects`` says what that can be.
"""

import mmap
import pickle
import pickletools
from collections.abc import Callable, Mapping
from typing import IO, Any, cast

from groundup.checkpoint.safe_pickle.objects import (
    Name,
    StorageInPickle,
    as_key,
    call,
    extend,
    kind_of,
    resolve_name,
    set_items,
    set_state,
    storage_of,
)


def read_pickle(file: IO[bytes] | mmap.mmap, storages: dict[str, StorageInPickle] | None = None) -> Any:
    """Reads what a pickle describes, to its STOP: plain values, containers, ``Stub``, ``TensorInPickle``.

    Args:
        file: Positioned where the pickle begins.
        storages: Receives the storages that it describes, by their keys.

    Raises:
        ForbiddenNameError: It names, or calls, what no checkpoint needs.
        pickle.UnpicklingError: It has an opcode that ``torch.save`` does not write.
        Exception: Those of ``pickletools`` for damaged pickles (ValueError and its like).
    """
    machine = _Machine({} if storages is None else storages)
    for opcode, argument, _ in pickletools.genops(cast("IO[bytes]", file)):
        machine.step(opcode.name, argument)
    return machine.stack.pop()


_PUSHED_AS_READ = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
}
_STRINGS_OF_PYTHON_2 = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_NEW: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING = {"PROTO", "FRAME", "STOP"}


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self, storages: dict[str, StorageInPickle]) -> None:
        self.stack: list[Any] = []
        self._storages = storages
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._names: dict[tuple[str, str], Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        """Executes one opcode."""
        if opcode in _PUSHED_AS_READ:
            self.stack.append(argument)
        elif opcode in {"BINPUT", "LONG_BINPUT", "PUT"}:
            self._memo[argument] = self.stack[-1]
        elif opcode in {"BINGET", "LONG_BINGET", "GET"}:
            self.stack.append(self._memo[argument])
        elif opcode in _NEW:
            self.stack.append(_NEW[opcode]())
        elif opcode in _TUPLES:
            count = _TUPLES[opcode]
            items = tuple(self.stack[-count:])
            if len(items) < count:
                raise pickle.UnpicklingError("a tuple of more than there is")
            self.stack[-count:] = [items]
        elif opcode in _STRINGS_OF_PYTHON_2:
            self.stack.append(argument.encode("latin-1").decode())
        elif opcode not in _NOTHING:
            handler = _HANDLERS.get(opcode)
            if handler is None:
                raise pickle.UnpicklingError(f"the opcode {opcode}, which torch.save does not write")
            handler(self, argument)

    def _mark(self, _: Any) -> None:
        self._marked.append(self.stack)
        self.stack = []

    def _since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self._marked.pop()
        return items

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def _pop(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._since_mark()

    def _tuple(self, _: Any) -> None:
        items = tuple(self._since_mark())
        self.stack.append(items)

    def _append(self, _: Any) -> None:
        item = self.stack.pop()
        extend(self.stack[-1], [item])

    def _appends(self, _: Any) -> None:
        items = self._since_mark()
        extend(self.stack[-1], items)

    def _add_items(self, _: Any) -> None:
        items = self._since_mark()
        if type(self.stack[-1]) is not set:
            raise pickle.UnpicklingError(f"adds items to {kind_of(self.stack[-1])}")
        self.stack[-1].update(map(as_key, items))

    def _set_item(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        set_items(self.stack[-1], [key, value])

    def _set_items(self, _: Any) -> None:
        items = self._since_mark()
        set_items(self.stack[-1], items)

    def _frozenset(self, _: Any) -> None:
        items = self._since_mark()
        self.stack.append(frozenset(map(as_key, items)))

    def _global(self, argument: str) -> None:
        self._push_name(*argument.split(" ", 1))

    def _stack_global(self, _: Any) -> None:
        attribute, module = self.stack.pop(), self.stack.pop()
        self._push_name(module, attribute)

    def _push_name(self, module: Any, attribute: Any) -> None:
        if type(module) is not str or type(attribute) is not str:
            raise pickle.UnpicklingError("a name that is no text")
        module = "builtins" if module == "__builtin__" else module  # its name in pickles of protocol 2
        key = (module, attribute)
        if key not in self._names:
            self._names[key] = resolve_name(Name(module, attribute))
        self.stack.append(self._names[key])

    def _call(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(call(function, arguments))

    def _call_with_names(self, _: Any) -> None:
        named, arguments, function = self.stack.pop(), self.stack.pop(), self.stack.pop()
        if type(named) is not dict or type(arguments) is not tuple:
            raise pickle.UnpicklingError("calls with what is no arguments")
        self.stack.append(call(function, (*arguments, *named.values())))

    def _build(self, _: Any) -> None:
        state = self.stack.pop()
        set_state(self.stack[-1], state)

    def _persistent(self, _: Any) -> None:
        storage = storage_of(self.stack.pop())
        self._storages.setdefault(storage.key, storage)
        self.stack.append(storage)


_HANDLERS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine._mark,
    "MEMOIZE": _Machine._memoize,
    "POP": _Machine._pop,
    "TUPLE": _Machine._tuple,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "ADDITEMS": _Machine._add_items,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    "FROZENSET": _Machine._frozenset,
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._call,
    "NEWOBJ": _Machine._call,
    "NEWOBJ_EX": _Machine._call_with_names,
    "BUILD": _Machine._build,
    "BINPERSID": _Machine._persistent,
}
