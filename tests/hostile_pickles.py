"""Files of ``torch.save`` whose pickles are written opcode by opcode, as no program would save them."""

import pickle
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_MAGIC = 0x1950A86A20F9469CFC6C


def name(module: str, attribute: str) -> bytes:
    """Pushes what a module calls so."""
    return b"c%s\n%s\n" % (module.encode(), attribute.encode())


def value(thing: Any) -> bytes:
    """Pushes a plain value."""
    return pickle.dumps(thing, 2)[2:-1]


def tuple_of(*items: bytes) -> bytes:
    """Pushes a tuple."""
    return b"(" + b"".join(items) + b"t"


def list_of(*items: bytes) -> bytes:
    """Pushes a list."""
    return b"](" + b"".join(items) + b"e"


def dict_of(entries: Mapping[str, bytes]) -> bytes:
    """Pushes a dict."""
    return b"}(" + b"".join(value(key) + item for key, item in entries.items()) + b"u"


def call(function: bytes, *arguments: bytes) -> bytes:
    """REDUCE: calls what was pushed."""
    return function + tuple_of(*arguments) + b"R"


def build(thing: bytes, state: bytes) -> bytes:
    """BUILD: gives a thing a state."""
    return thing + state + b"b"


def storage(key: str, num_elements: int, kind: str = "FloatStorage", *, view: Any = ()) -> bytes:
    """BINPERSID: pushes a storage; ``view`` is what only old files have."""
    pid = (value("storage"), name("torch", kind), value(key), value("cpu"), value(num_elements))
    return tuple_of(*pid, *((value(view),) if view != () else ())) + b"Q"


def tensor(stored: bytes, shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> bytes:
    """Pushes a tensor, as ``torch.save`` names its parts."""
    rebuild = name("torch._utils", "_rebuild_tensor_v2")
    hooks = call(name("collections", "OrderedDict"))
    plain = [value(offset), value(tuple(shape)), value(tuple(stride)), value(False)]
    return call(rebuild, stored, *plain, hooks)


def write_zip(
    path: Path, content: bytes, storages: Mapping[str, bytes] | None = None, *, compress: bool = False
) -> Path:
    """A file as since torch 1.6."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + content + b".")
        archive.writestr("archive/byteorder", "little")
        for key, stored in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", stored)
        archive.writestr("archive/version", "3\n")
    return path


def write_legacy(
    path: Path, content: bytes, storages: Sequence[tuple[str, int, bytes]] = (), *, keys: Any = None
) -> Path:
    """A file as before torch 1.6: pickles, the keys of the storages, and each one's length and bytes."""
    parts = [pickle.dumps(part, 2) for part in (_MAGIC, 1001, {"little_endian": True})]
    parts += [b"\x80\x02" + content + b"."]
    parts += [pickle.dumps([key for key, _, _ in storages] if keys is None else keys, 2)]
    parts += [struct.pack("<q", count) + stored for _, count, stored in storages]
    path.write_bytes(b"".join(parts))
    return path
