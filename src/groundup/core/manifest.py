"""Provenance: each artefact folder or file group says what it holds and what it was made from."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from groundup import __version__
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
    from groundup.core.config import to_dict

    write_json(path, _without_none(manifest, to_dict(manifest)))


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


def _without_none(manifest: Any, plain: dict[str, Any]) -> dict[str, Any]:
    nested = {name: getattr(manifest, name) for name in plain}
    return {
        name: _without_none(nested[name], value) if dataclasses.is_dataclass(nested[name]) else value
        for name, value in plain.items()
        if value is not None
    }


def fingerprint(value: Any) -> str:
    """A short hash of any JSON-like value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an artefact is, what made it, and the checksums of its files."""

    kind: str
    fingerprint: str = ""
    inputs: dict[str, str] = dataclasses.field(default_factory=dict)
    counts: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: dict[str, FileRecord] = dataclasses.field(default_factory=dict)
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    format_version: int = 1
    groundup_version: str = __version__

    def write(self, path: Path) -> None:
        """Writes the manifest as JSON, atomically."""
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def read(cls, path: Path, kind: str) -> "Manifest":
        """Reads a manifest.

        Raises:
            DataError: Missing, not JSON, of another kind, or of a newer format.
        """
        return cls.of(read_json(path), kind, where=path)

    @classmethod
    def of(cls, value: Any, kind: str, *, where: object) -> "Manifest":
        """A manifest from the value that its JSON file holds.

        Raises:
            DataError: Of another kind, of a newer format, or damaged; ``where`` names the file.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(value, dict) or not names >= set(value):
            raise DataError("not a groundup manifest of this version", where=where)
        if missing := _malformed(value):
            raise DataError(f"the manifest is damaged: {missing}", where=where, fix=_FIX)
        files = {name: FileRecord(**entry) for name, entry in value.get("files", {}).items()}
        manifest = cls(**{**value, "files": files})
        if manifest.kind != kind or manifest.format_version > 1:
            raise DataError(
                f"holds {manifest.kind} (format {manifest.format_version}), expected {kind} (format 1)",
                where=where,
            )
        return manifest


_FIX = "Get it or build it again."
_MAPPINGS = ("inputs", "counts", "files", "about")
_COUNTS = ("documents", "tokens", "text_bytes", "empty_documents")
_TOKENIZER = ("folder", "fingerprint")


def _malformed(value: dict[str, Any]) -> str:
    """What is wrong with the values of a manifest; empty for a sound one."""
    if type(value.get("kind")) is not str or type(value.get("format_version", 1)) is not int:
        return "kind is no text, or format_version no number"
    for name in _MAPPINGS:
        if not isinstance(value.get(name, {}), dict):
            return f"{name} is no object"
    for name, entry in value.get("files", {}).items():
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int:
            return f"files.{name} has no size"
        if type(entry.get("checksum")) is not str:
            return f"files.{name} has no checksum"
    counts = value.get("counts", {})
    for name in _COUNTS:
        if type(counts.get(name, 0)) is not int:
            return f"counts.{name} is {counts[name]!r}"
    if not isinstance(counts.get("bad_records", {}), dict):
        return "counts.bad_records is no object"
    if value["kind"] == "tokens" and value.get("about"):
        tokenizer = value["about"].get("tokenizer")
        if not isinstance(tokenizer, dict) or any(type(tokenizer.get(key)) is not str for key in _TOKENIZER):
            return "about.tokenizer names no tokenizer"
    return ""


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
