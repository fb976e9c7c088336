"""Checkpoint folders that are whole or do not count.

A checkpoint holds *logical* tensors (see ``groups``): under their own names, at the true vocabulary, in
safetensors files, so that any layout can load it. ``manifest.json`` describes it and carries every
file's checksum; the marker ``COMPLETE``, with the manifest's, is written last. The folder is prepared
under a temporary name, fsynced and renamed; a reader passes over whatever is incomplete or damaged,
saying so.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from groundup.core.errors import CheckpointError, DataError, MachineError
from groundup.core.files import atomic_write, checksum, fsync_dir, fsync_file, require_free_space
from groundup.core.log import logger
from groundup.core.manifest import Manifest, damage, describe_files
from groundup.parallel.team import Team
from groundup.tokens.tokenizer import Tokenizer

MARKER = "COMPLETE"  # holds the checksum of the manifest, which has those of all other files
MANIFEST = "manifest.json"
_TOKENIZER = "tokenizer"
_FOLDER = re.compile(r"step_(\d+)")
LATEST = "latest"


def save_files(
    checkpoints_dir: Path,
    step: int,
    write: Callable[[Path], None],
    *,
    size_bytes: int,
    state: Mapping[str, Any],
    about: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> Path:
    """Writes ``step_NNNNNNN`` as one process and then points ``latest`` to it.

    Args:
        checkpoints_dir: Of a run.
        step: Of the training.
        write: Puts the files of tensors, ``groups.file_name`` of each, into a folder.
        size_bytes: Of them.
        state: See ``writer.Snapshot``.
        about: See there.
        tokenizer: Stored too.

    Raises:
        MachineError: The disk is full, before or while writing; older checkpoints stay intact.
    """
    folder = folder_of(checkpoints_dir, step)
    temporary = temporary_of(checkpoints_dir, step)
    remove(temporary)
    require_free_space(checkpoints_dir, size_bytes + (1 << 20), f"the checkpoint of step {step}")
    try:
        temporary.mkdir(parents=True)
        write(temporary)
        write_tokenizer(temporary, tokenizer)
        names = sorted(str(p.relative_to(temporary)) for p in temporary.rglob("*") if p.is_file())
        for name in names:
            fsync_file(temporary / name)
        about = {**about, "tokenizer": tokenizer.fingerprint, "torch": torch.__version__}
        complete(temporary, folder, files=describe_files(temporary, names), state=state, about=about)
    except OSError as error:
        raise write_failure(checkpoints_dir, step, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    point_latest(folder)
    return folder


def write_failure(checkpoints_dir: Path, step: int, error: OSError) -> MachineError:
    """What to say when a checkpoint could not be written."""
    return MachineError(
        f"the checkpoint of step {step} could not be written ({error}); earlier checkpoints are intact",
        where=checkpoints_dir,
        fix="Free some space; the same command continues from the newest checkpoint.",
    )


def complete(
    temporary: Path,
    folder: Path,
    *,
    files: Mapping[str, Mapping[str, Any]],
    state: Mapping[str, Any],
    about: Mapping[str, Any],
) -> None:
    """Makes a checkpoint of a folder whose files are written and fsynced: manifest, marker, name.

    Args:
        temporary: With the files.
        folder: To be named so; what has the name is replaced.
        files: Size and checksum of each file.
        state: See ``writer.Snapshot``.
        about: See there.
    """
    manifest = Manifest(
        kind="checkpoint",
        files={name: dict(described) for name, described in files.items()},
        counts=dict(state),
        about=dict(about),
    )
    manifest.write(temporary / MANIFEST)
    with atomic_write(temporary / MARKER) as file:
        file.write(checksum(temporary / MANIFEST).encode() + b"\n")
    put_in_place(temporary, folder)


def put_in_place(temporary: Path, folder: Path) -> None:
    """Gives a complete checkpoint, whose files are fsynced, its name; what has the name is replaced."""
    for inner in temporary.rglob("*"):
        if inner.is_dir():
            fsync_dir(inner)
    fsync_dir(temporary)
    remove(folder)
    temporary.rename(folder)
    fsync_dir(folder.parent)


def write_tokenizer(temporary: Path, tokenizer: Tokenizer) -> list[str]:
    """Puts the tokenizer into a folder; returns the names of its files, which are fsynced."""
    tokenizer.save(temporary / _TOKENIZER)
    paths = [path for path in (temporary / _TOKENIZER).rglob("*") if path.is_file()]
    for path in paths:
        fsync_file(path)
    return sorted(str(path.relative_to(temporary)) for path in paths)


def temporary_of(checkpoints_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step lies until it is complete."""
    return checkpoints_dir / f".{folder_of(checkpoints_dir, step).name}.tmp"


def folder_of(checkpoints_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return checkpoints_dir / f"step_{step:07d}"


def tokenizer_dir(folder: Path) -> Path:
    """Where a checkpoint keeps its tokenizer."""
    return folder / _TOKENIZER


def verify(folder: Path, team: Team | None = None) -> str:
    """Why a checkpoint cannot be used; empty when it is whole.

    Args:
        folder: The checkpoint.
        team: Ranks that each check a share of the files, together, and find the same.
    """
    if team is None or team.size == 1:
        files, reason = _files(folder)
        return reason or damage(folder, files)
    files, reason = team.gather(_files(folder) if team.is_first else None)[0]
    if reason:
        return str(reason)
    shares: list[dict[str, dict[str, Any]]] = [{} for _ in range(team.size)]
    for name in sorted(files, key=lambda name: -files[name]["bytes"]):
        least = min(shares, key=lambda share: sum(one["bytes"] for one in share.values()))
        least[name] = files[name]
    reasons: list[str] = team.gather(damage(folder, shares[team.rank]))
    return next(filter(None, reasons), "")


def verify_sizes(folder: Path) -> str:
    """Why a checkpoint is not complete, without reading what is in its files; empty when it is."""
    files, reason = _files(folder)
    for name, recorded in files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else -1
        if size != recorded["bytes"]:
            return (
                f"{name} has {size:,} bytes, expected {recorded['bytes']:,}"
                if size >= 0
                else f"{name} is missing"
            )
    return reason


def read_manifest(folder: Path) -> Manifest:
    """What a checkpoint says of itself.

    Raises:
        DataError: Missing or damaged.
    """
    return Manifest.read(folder / MANIFEST, "checkpoint")


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a native checkpoint, sound or not."""
    return (folder / MANIFEST).is_file() and any(folder.glob("model*.safetensors"))


def newest_verified(checkpoints_dir: Path, team: Team | None = None) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are named in the log. None when there is none.

    Args:
        checkpoints_dir: Of a run.
        team: Ranks that look together, and find the same.
    """
    folders = list(_newest_first(checkpoints_dir))
    if team is not None:
        folders = team.gather(folders)[0]
    for folder in folders:
        reason = verify(folder, team)
        if not reason:
            return folder
        if team is None or team.is_first:
            logger.warning("skipping checkpoint %s: %s", folder, reason)
    return None


def steps_of(checkpoints_dir: Path) -> list[Path]:
    """The checkpoints of a run, sound or not, the oldest first."""
    return list(_newest_first(checkpoints_dir))[::-1]


def step_of(folder: Path) -> int:
    """The step that a checkpoint's folder is named by."""
    match = _FOLDER.fullmatch(folder.name)
    assert match, "steps_of names such folders only"
    return int(match[1])


def prune(checkpoints_dir: Path, *, keep_last: int, keep_every: int = 0, keep_back: int = 0) -> list[Path]:
    """Removes checkpoints, and what unfinished saves left behind; returns those that are gone.

    Args:
        checkpoints_dir: Of a run.
        keep_last: How many of the newest stay.
        keep_every: Those of steps that this divides stay too; 0 for none.
        keep_back: Those of fewer steps before whatever step comes next stay, and the newest of as many or
            more; 0 for none.
    """
    assert keep_last >= 1, "the config refuses less"
    gone = []
    folders = list(_newest_first(checkpoints_dir))
    if keep_back and folders:
        nearer = [one for one in folders if step_of(one) + keep_back > step_of(folders[0]) + 1]
        keep_last = max(keep_last, len(nearer) + 1)
    for folder in folders[keep_last:]:
        if not keep_every or step_of(folder) % keep_every:
            remove(folder)
            gone.append(folder)
    for leftover in checkpoints_dir.glob(".step_*.tmp"):
        remove(leftover)
    return gone


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
    for folder in (path / "checkpoints", path):
        if folder.is_dir() and (newest := newest_verified(folder)):
            return newest
    raise CheckpointError(
        "holds no usable checkpoint",
        where=path,
        fix="Name a run folder of `groundup train`, one of its checkpoints, a Hugging Face folder or a"
        " checkpoint of Megatron-LM.",
    )


def _files(folder: Path) -> tuple[dict[str, dict[str, Any]], str]:
    """The files that a checkpoint should have, or why that cannot be known."""
    if not (folder / MARKER).is_file():
        return {}, f"incomplete ({MARKER} is missing)"
    if not (folder / MANIFEST).is_file():
        return {}, f"{MANIFEST} is missing"
    if checksum(folder / MANIFEST).encode() != (folder / MARKER).read_bytes().strip():
        return {}, f"{MANIFEST} does not match its checksum in {MARKER}"
    try:
        return read_manifest(folder).files, ""
    except DataError as error:
        return {}, str(error)


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
        shutil.rmtree(latest)  # a copy of the run, made by a program that follows links
    link.replace(latest)


def remove(folder: Path) -> None:
    """Removes a checkpoint, its marker first, so that a half-removed one does not count."""
    if folder.is_dir():
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder)
