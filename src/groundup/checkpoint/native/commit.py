"""How written files become a checkpoint: manifest and marker, then the name.

The files are prepared under a temporary name and fsynced. What has the name already is moved aside before
the renaming, and removed after it only on request, so that one of the two is there at any instant.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint.companions import Companions
from groundup.checkpoint.native.contents import MANIFEST, TOKENIZER
from groundup.checkpoint.native.store import (
    MARKER,
    folder_of,
    free_name,
    point_latest,
    remove,
    temporary_of,
    verify,
)
from groundup.core.errors import MachineError
from groundup.core.files import atomic_write, checksum, fsync_dir, fsync_file, require_free_space
from groundup.core.log import logger
from groundup.core.manifest import FileRecord, Manifest, describe_files
from groundup.tokens.tokenizer.base import Tokenizer

_REPLACED = ".{}.replaced"


def save_files(
    checkpoints_dir: Path,
    step: int,
    write: Callable[[Path], None],
    *,
    size_bytes: int,
    state: Mapping[str, Any],
    about: Mapping[str, Any],
    tokenizer: Tokenizer,
    companions: Companions,
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
        companions: Stored beside it.

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
        write_tokenizer(temporary, tokenizer, companions)
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
    files: Mapping[str, FileRecord],
    state: Mapping[str, Any],
    about: Mapping[str, Any],
    replaces: bool = False,
) -> None:
    """Makes a checkpoint of a folder whose files are written and fsynced: manifest, marker, name.

    Args:
        temporary: With the files.
        folder: To be named so.
        files: Size and checksum of each file.
        state: See ``writer.Snapshot``.
        about: See there.
        replaces: See ``rename_into_place``.
    """
    manifest = Manifest(
        kind="checkpoint",
        files=dict(files),
        counts=dict(state),
        about=dict(about),
    )
    manifest.write(temporary / MANIFEST)
    with atomic_write(temporary / MARKER) as file:
        file.write(checksum(temporary / MANIFEST).encode() + b"\n")
    rename_into_place(temporary, folder, replaces=replaces)


def rename_into_place(temporary: Path, folder: Path, *, replaces: bool = False) -> None:
    """Gives a complete checkpoint, whose files are fsynced, its name.

    Args:
        temporary: The checkpoint.
        folder: To be named so. What has the name is left under another one, in the log.
        replaces: A sound one that has the name is removed.
    """
    for inner in temporary.rglob("*"):
        if inner.is_dir():
            fsync_dir(inner)
    fsync_dir(temporary)
    replaced = _replaced_name(folder)
    if folder.exists() or folder.is_symlink():
        reason = verify(folder)
        if replaces and not reason:
            remove(replaced)
            folder.rename(replaced)
        else:
            aside = free_name(folder.with_name(f"{'damaged' if reason else 'other'}_{folder.name}"))
            folder.rename(aside)
            logger.warning("%s was there already (%s) and is now %s", folder, reason or "sound", aside.name)
    temporary.rename(folder)
    fsync_dir(folder.parent)
    remove(replaced)


def recover(checkpoints_dir: Path) -> None:
    """Ends a replacement that was interrupted: the old checkpoint has its name again, or is removed."""
    for replaced in sorted(checkpoints_dir.glob(_REPLACED.format("step_*"))):
        folder = checkpoints_dir / replaced.name.removeprefix(".").removesuffix(".replaced")
        if folder.exists():
            remove(replaced)
        else:
            replaced.rename(folder)


def _replaced_name(folder: Path) -> Path:
    return folder.with_name(_REPLACED.format(folder.name))


def write_tokenizer(temporary: Path, tokenizer: Tokenizer, companions: Companions) -> list[str]:
    """Puts the tokenizer and its companions into a folder; returns the names of the files, fsynced."""
    tokenizer.save(temporary / TOKENIZER)
    companions.write(temporary / TOKENIZER)
    paths = [path for path in (temporary / TOKENIZER).rglob("*") if path.is_file()]
    for path in paths:
        fsync_file(path)
    return sorted(str(path.relative_to(temporary)) for path in paths)
