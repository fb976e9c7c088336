"""Provenance: each artefact folder or file group says what it holds and what it was made from."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from groundup import __version__
from groundup.core.errors import DataError
from groundup.core.files import checksum, read_json, write_json


def fingerprint(value: Any) -> str:
    """A short hash of any JSON-like value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an artefact is, what made it, and the checksums of its files.

    Attributes:
        kind: "corpus", "tokenizer", "tokens", "checkpoint", ...
        fingerprint: Of the config and inputs that made it: equal fingerprint, equal content.
        inputs: Name -> fingerprint or checksum of what it was made from.
        counts: Documents, tokens, bytes, drops by reason, ...
        files: Name relative to the manifest's folder -> {"bytes", "checksum"}.
        about: Anything a reader needs besides (tokenizer, dtype, config).
    """

    kind: str
    fingerprint: str = ""
    inputs: dict[str, str] = dataclasses.field(default_factory=dict)
    counts: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
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
            DataError: Of another kind, or of a newer format; ``where`` names the file.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(value, dict) or not names >= set(value):
            raise DataError("not a groundup manifest of this version", where=where)
        manifest = cls(**value)
        if manifest.kind != kind or manifest.format_version > 1:
            raise DataError(
                f"holds {manifest.kind} (format {manifest.format_version}), expected {kind} (format 1)",
                where=where,
            )
        return manifest


def describe_files(
    folder: Path, names: list[str], *, on_read: Callable[[int], None] | None = None
) -> dict[str, dict[str, Any]]:
    """Size and checksum of each named file, for ``Manifest.files``; ``on_read`` is told of each piece."""
    return {
        name: {
            "bytes": (folder / name).stat().st_size,
            "checksum": checksum(folder / name, on_read=on_read),
        }
        for name in names
    }


def damage(
    folder: Path, files: dict[str, dict[str, Any]], *, on_read: Callable[[int], None] | None = None
) -> str:
    """Why the files do not match their recorded sizes and checksums; empty when they do."""
    for name, recorded in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != recorded["bytes"]:
            return f"{name} has {size:,} bytes, expected {recorded['bytes']:,}"
        if checksum(path, on_read=on_read) != recorded["checksum"]:
            return f"{name} does not match its checksum"
    return ""
