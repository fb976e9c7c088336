"""Provenance: each artefact folder or file group says what it holds and what it was made from."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from groundup.core.config_class import NotNegative, config
from groundup.core.errors import ConfigError, DataError
from groundup.core.files import checksum, read_json, write_json

T = TypeVar("T")


@config
class FileRecord:
    """Size and checksum of a file that a manifest lists."""

    bytes: NotNegative
    checksum: str


def write_manifest(path: Path, manifest: Any) -> None:
    """Writes a manifest, an instance of a config class, as JSON, atomically; fields of None are left out."""
    write_json(path, _plain(manifest))


def read_manifest(path: Path, cls: type[T]) -> T:
    """Reads a manifest.

    Args:
        path: Its JSON file.
        cls: The config class of its kind of artefact, with a literal ``kind`` and ``format_version``.

    Raises:
        DataError: Missing, not JSON, of another kind or a newer format, or with unknown, missing or malformed
            fields, each of which is named.
    """
    return manifest_from(read_json(path), cls, where=path)


def manifest_from(value: Any, cls: type[T], *, where: object) -> T:
    """A manifest from the value that its JSON file holds; raises as ``read_manifest`` does.

    Args:
        value: What the file holds.
        cls: The config class of its kind of artefact.
        where: The file or the address, for messages.
    """
    from groundup.core.config import from_dict

    if not isinstance(value, dict):
        raise DataError("not a groundup manifest", where=where)
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    expected = (defaults["kind"], defaults["format_version"])
    found = (value.get("kind"), value.get("format_version", 1))
    if found != expected:
        raise DataError(
            f"holds {found[0]!r} (format {found[1]}), expected {expected[0]!r} (format {expected[1]})",
            where=where,
        )
    try:
        return from_dict(cls, value, where="")
    except ConfigError as error:
        raise DataError(f"the manifest is damaged: {error}", where=where, fix=_FIX) from None


def _plain(value: Any) -> Any:
    """What JSON can hold of a manifest; pydantic, which reads one, takes 70 ms to import."""
    match value:
        case Mapping():
            return {name: _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case Path():
            return str(value)
        case float() if not math.isfinite(value):
            return repr(value)
    if dataclasses.is_dataclass(value):
        named = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {name: item for name, item in named.items() if item is not None}
    return value


def fingerprint(value: Any) -> str:
    """A short hash of any JSON-like value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_FIX = "Get it or build it again."


def describe_files(
    folder: Path, names: list[str], *, on_read: Callable[[int], None] | None = None
) -> dict[str, FileRecord]:
    """Size and checksum of each named file of a folder; ``on_read`` gets the number of bytes of each read."""
    return {
        name: FileRecord(
            bytes=(folder / name).stat().st_size, checksum=checksum(folder / name, on_read=on_read)
        )
        for name in names
    }


def find_damage(
    folder: Path, files: dict[str, FileRecord], *, on_read: Callable[[int], None] | None = None
) -> str | None:
    """Finds the first file that does not have its recorded size and checksum; None where all have."""
    for name, recorded in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != recorded.bytes:
            return f"{name} has {size:,} bytes, expected {recorded.bytes:,}"
        if checksum(path, on_read=on_read) != recorded.checksum:
            return f"{name} does not match its checksum"
    return None
