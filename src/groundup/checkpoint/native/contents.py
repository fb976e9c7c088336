"""The files of a checkpoint: those that its manifest lists, and no others, are opened."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from groundup.core.errors import CheckpointError
from groundup.core.files import read_json
from groundup.core.manifest import Manifest

MANIFEST = "manifest.json"
PARTS = "parts.json"
TOKENIZER = "tokenizer"
CHAT_TEMPLATES = "additional_chat_templates"
"""A folder within the tokenizer's, as transformers writes it."""
_WEIGHTS = ".safetensors"


def read_manifest(folder: Path) -> Manifest:
    """What a checkpoint says of itself.

    Raises:
        DataError: Missing, not JSON, damaged, or not a manifest of a checkpoint.
        CheckpointError: It lists no files, or paths that a checkpoint does not have.
    """
    path = folder / MANIFEST
    manifest = Manifest.read(path, "checkpoint")
    if not manifest.files:
        raise CheckpointError("lists no files", where=path, fix="Copy the checkpoint again.")
    for name in manifest.files:
        if not _is_plain(name.removeprefix(f"{TOKENIZER}/").removeprefix(f"{CHAT_TEMPLATES}/")):
            raise CheckpointError(f"names a file outside of the checkpoint: {name!r}", where=path)
    return manifest


def read_parts(folder: Path, files: Mapping[str, Any]) -> dict[str, Any] | None:
    """What ``parts.json`` says, by group; None where the manifest does not list it.

    Args:
        folder: The checkpoint.
        files: What its manifest lists.

    Raises:
        CheckpointError: It is malformed, or names a file that the manifest does not list.
        DataError: It is missing, or not JSON.
    """
    if PARTS not in files:
        return None
    groups: Any = read_json(folder / PARTS)
    try:
        named = {part[0] for group in groups.values() for entry in group.values() for part in entry["parts"]}
    except (AttributeError, KeyError, TypeError, IndexError):
        raise CheckpointError("does not say which file holds which tensor", where=folder / PARTS) from None
    if not groups:
        raise CheckpointError("names no tensors", where=folder / PARTS)
    for file in named:
        if not isinstance(file, str) or not _is_plain(file):
            raise CheckpointError(f"names a file outside of the checkpoint: {file!r}", where=folder / PARTS)
        if file not in files:
            raise CheckpointError(f"names {file}, which {MANIFEST} does not list", where=folder / PARTS)
    return dict(groups)


def weight_groups(files: Mapping[str, Any]) -> list[str]:
    """The groups of a checkpoint without ``parts.json``: one file each."""
    return sorted(name.removesuffix(_WEIGHTS) for name in files if name.endswith(_WEIGHTS))


def unlisted_tokenizer_file(folder: Path, files: Mapping[str, Any]) -> str:
    """A file beside those of the tokenizer that the manifest does not list; empty where there is none."""
    within = folder / TOKENIZER
    paths = sorted(within.rglob("*")) if within.is_dir() else []
    found = (str(path.relative_to(folder)) for path in paths if path.is_file() and path.name[0] != ".")
    return next((name for name in found if name not in files), "")


def _is_plain(name: str) -> bool:
    return bool(name) and name != ".." and PurePosixPath(name).name == name and "\\" not in name
