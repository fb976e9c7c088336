"""Checkpoint folders that are whole or do not count.

A checkpoint holds *logical* tensors (see ``groups``): under their own names, at the true vocabulary, in
safetensors files, so that any layout can load it. ``manifest.json`` describes it and carries every
file's checksum; the marker ``COMPLETE``, with the manifest's, is written last. The folder is prepared
under a temporary name, fsynced and renamed; a reader passes over whatever is incomplete or damaged,
saying so.
"""

import dataclasses
import itertools
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from groundup.checkpoint.native.contents import (
    MANIFEST,
    TOKENIZER,
    read_manifest,
    read_parts,
    unlisted_tokenizer_file,
)
from groundup.core.errors import CheckpointError, GroundupError
from groundup.core.files import checksum
from groundup.core.log import logger
from groundup.core.manifest import FileRecord, find_damage
from groundup.parallel.mesh import ParallelMesh

MARKER = "COMPLETE"  # holds the checksum of the manifest, which has those of all other files
_FOLDER = re.compile(r"step_(\d+)")
LATEST = "latest"


def temporary_of(checkpoints_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step lies until it is complete."""
    return checkpoints_dir / f".{folder_of(checkpoints_dir, step).name}.tmp"


def folder_of(checkpoints_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return checkpoints_dir / f"step_{step:07d}"


def tokenizer_dir(folder: Path) -> Path:
    """Where a checkpoint keeps its tokenizer."""
    return folder / TOKENIZER


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """What is wrong with a checkpoint, in words; empty where nothing is.

    Attributes:
        state: With what training continues from.
        tokenizer: With the stored tokenizer, which the data of a run has too.
    """

    state: str = ""
    tokenizer: str = ""


def damage_of(folder: Path, mesh: ParallelMesh | None = None) -> Damage:
    """What is wrong with a checkpoint; reads every byte.

    Args:
        folder: The checkpoint.
        mesh: Ranks that each check a share of the files, together, and find the same.
    """
    if mesh is None or mesh.size == 1:
        return _damage_of_listed(folder, _files(folder))
    listed = mesh.all_gather(_files(folder) if mesh.is_first else None)[0]
    shares: list[dict[str, FileRecord]] = [{} for _ in range(mesh.size)]
    for name, recorded in sorted(listed.files.items(), key=lambda item: -item[1].bytes):
        least = min(shares, key=lambda share: sum(one.bytes for one in share.values()))
        least[name] = recorded
    own = dataclasses.replace(listed, files=shares[mesh.rank])
    every: list[Damage] = mesh.all_gather(_damage_of_listed(folder, own))
    return Damage(
        state=next((one.state for one in every if one.state), ""),
        tokenizer=next((one.tokenizer for one in every if one.tokenizer), ""),
    )


def verify(folder: Path, mesh: ParallelMesh | None = None) -> str:
    """Why a checkpoint cannot be used; empty when it is whole. Reads every byte, as ``damage_of``."""
    found = damage_of(folder, mesh)
    return found.state or found.tokenizer


def verify_sizes(folder: Path) -> str:
    """Why a checkpoint is not complete, without reading what is in its files; empty when it is."""
    listed = _files(folder)
    for name, recorded in listed.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else -1
        if size != recorded.bytes:
            return (
                f"{name} has {size:,} bytes, expected {recorded.bytes:,}"
                if size >= 0
                else f"{name} is missing"
            )
    return listed.state or listed.tokenizer


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a native checkpoint, sound or not."""
    return (folder / MANIFEST).is_file() and any(folder.glob("model*.safetensors"))


def newest_sound(checkpoints_dir: Path, mesh: ParallelMesh | None = None) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are named in the log. None when there is none."""
    return find_newest(checkpoints_dir, mesh)[0]


def find_newest(
    checkpoints_dir: Path, mesh: ParallelMesh | None = None, *, tokenizer: str = ""
) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that is whole, None without one; and what is wrong with those newer than it.

    The log names what is passed over.

    Args:
        checkpoints_dir: Of a run.
        mesh: Ranks that look together, and find the same.
        tokenizer: Fingerprint of a tokenizer at hand: the copy in a checkpoint that was made with the same
            may be damaged.
    """
    folders = list(_newest_first(checkpoints_dir))
    if mesh is not None:
        folders = mesh.all_gather(folders)[0]
    warn = logger.warning if mesh is None or mesh.is_first else logger.debug
    damaged: dict[Path, str] = {}
    for folder in folders:
        found = damage_of(folder, mesh)
        if not (found.state or found.tokenizer):
            return folder, damaged
        if tokenizer and not found.state and read_manifest(folder).about.get("tokenizer") == tokenizer:
            warn("%s: %s; the tokenizer of the data is the same and is used", folder, found.tokenizer)
            return folder, damaged
        damaged[folder] = found.state or found.tokenizer
        warn("skipping checkpoint %s: %s", folder, damaged[folder])
    return None, damaged


def describe_damage(damaged: Mapping[Path, str]) -> str:
    """The damage of each checkpoint in one line."""
    return "; ".join(f"{folder.name}: {reason}" for folder, reason in damaged.items())


def list_checkpoints(checkpoints_dir: Path) -> list[Path]:
    """The checkpoints of a run, sound or not, the oldest first."""
    return list(_newest_first(checkpoints_dir))[::-1]


def is_step(folder: Path) -> bool:
    """Whether a folder has the name of a checkpoint of a run."""
    return _FOLDER.fullmatch(folder.name) is not None


def step_of(folder: Path) -> int:
    """The step that a checkpoint's folder is named by."""
    match = _FOLDER.fullmatch(folder.name)
    assert match, "list_checkpoints names such folders only"
    return int(match[1])


def resolve(path: Path) -> Path:
    """The checkpoint that a path means: itself, or the newest sound one of a run folder.

    Raises:
        CheckpointError: There is none, or the one named is damaged.
    """
    if is_checkpoint(path):
        if reason := verify(path):
            raise CheckpointError(
                f"the checkpoint is damaged: {reason}", where=path, fix="Name an older one or the run folder."
            )
        return path.resolve()
    damaged: dict[Path, str] = {}
    for folder in (path / "checkpoints", path):
        if folder.is_dir():
            newest, found = find_newest(folder)
            if newest:
                return newest
            damaged |= found
    if damaged:
        raise CheckpointError(
            f"all checkpoints are damaged: {describe_damage(damaged)}",
            where=path,
            fix="Copy one again, or name another run.",
        )
    raise CheckpointError(
        "holds no usable checkpoint",
        where=path,
        fix="Name a run folder of `groundup train`, one of its checkpoints, a Hugging Face folder or a"
        " checkpoint of Megatron-LM.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Listed(Damage):
    """The files that a checkpoint should have, and what is wrong before any of them is read."""

    files: dict[str, FileRecord] = dataclasses.field(default_factory=dict)


def _files(folder: Path) -> _Listed:
    if not (folder / MARKER).is_file():
        return _Listed(state=f"incomplete ({MARKER} is missing)")
    if not (folder / MANIFEST).is_file():
        return _Listed(state=f"{MANIFEST} is missing")
    if checksum(folder / MANIFEST).encode() != (folder / MARKER).read_bytes().strip():
        return _Listed(state=f"{MANIFEST} does not match its checksum in {MARKER}")
    try:
        files = read_manifest(folder).files
        read_parts(folder, files)
    except GroundupError as error:
        return _Listed(state=f"{Path(error.where).name}: {error.what}")
    unlisted = unlisted_tokenizer_file(folder, files)
    return _Listed(files=files, tokenizer=f"{unlisted} is not listed in {MANIFEST}" if unlisted else "")


def _damage_of_listed(folder: Path, listed: _Listed) -> Damage:
    tokenizer = {name: listed.files[name] for name in listed.files if name.startswith(f"{TOKENIZER}/")}
    state = {name: listed.files[name] for name in listed.files if name not in tokenizer}
    return Damage(
        state=listed.state or find_damage(folder, state) or "",
        tokenizer=listed.tokenizer or find_damage(folder, tokenizer) or "",
    )


def _newest_first(checkpoints_dir: Path) -> Iterator[Path]:
    if not checkpoints_dir.is_dir():
        return
    found = [
        (int(match[1]), path) for path in checkpoints_dir.iterdir() if (match := _FOLDER.fullmatch(path.name))
    ]
    for _, path in sorted(found, reverse=True):
        yield path


def point_latest(folder: Path) -> None:
    """Renames a fresh symbolic link over ``latest``, so that it never dangles."""
    link, latest = folder.parent / f".{LATEST}.tmp", folder.parent / LATEST
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    if latest.is_dir() and not latest.is_symlink():
        copy = free_name(latest.with_name(f"copy_of_{LATEST}"))  # made by a program that follows links
        latest.rename(copy)
        logger.warning("%s was a folder, not a link, and is now %s", latest, copy.name)
    link.replace(latest)


def free_name(path: Path) -> Path:
    """The path, or ``path-2`` and so on where it exists already."""
    paths = (path.with_name(f"{path.name}-{count}") if count > 1 else path for count in itertools.count(1))
    return next(free for free in paths if not free.exists())


def remove(folder: Path) -> None:
    """Removes a checkpoint, all at once: under another name first. Of a link only the link."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.is_dir():
        removed = folder.with_name(f".{folder.name.strip('.')}.removed.tmp")
        shutil.rmtree(removed, ignore_errors=True)
        folder.rename(removed)
        shutil.rmtree(removed)
