"""Folders that a conversion writes: whole or absent, and never in place of anything but an earlier export."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from groundup.checkpoint.lazy import LazyModel
from groundup.core.errors import CheckpointError, MachineError
from groundup.core.files import fsync_dir, fsync_file, require_free_space
from groundup.core.manifest import Manifest, describe_files

MANIFEST = "groundup_export.json"

Check = Callable[[Path], None]
"""Looks at a finished folder before it gets its name; what it raises leaves nothing of it behind."""


@contextlib.contextmanager
def export_folder(
    folder: Path,
    stored: LazyModel,
    *,
    size_bytes: int,
    about: Mapping[str, Any],
    check: Check | None = None,
) -> Iterator[Path]:
    """A temporary folder to fill, which then gets its manifest and its name.

    Args:
        folder: To write; may be missing, empty or an earlier export, which is replaced.
        stored: The model that is written.
        size_bytes: That will be written.
        about: For the manifest.
        check: Called with the temporary folder when it is complete.

    Raises:
        CheckpointError: The folder holds something else, or the model that is being read.
        MachineError: The disk is too small or the files cannot be written.
    """
    _require_replaceable(folder)
    source, target = stored.source.resolve(), folder.resolve()
    if source == target or target in source.parents or source in target.parents:
        raise CheckpointError(
            f"would be written into, or over, the model that is read ({stored.source})",
            where=folder,
            fix="Name a folder beside it.",
        )
    require_free_space(folder.parent, size_bytes + (16 << 20), "the converted model")
    try:
        with temporary_beside(folder) as temporary:
            temporary.mkdir(parents=True)
            yield temporary
            names = sorted(
                str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()
            )
            Manifest(
                kind="export",
                inputs={"source": str(stored.source), "tokenizer": stored.tokenizer.fingerprint},
                files=describe_files(temporary, names),
                about=dict(about),
            ).write(temporary / MANIFEST)
            for name in (*names, MANIFEST):
                fsync_file(temporary / name)
            if check:
                check(temporary)
            _put_in_place(temporary, folder)
    except (OSError, SafetensorError) as error:
        raise MachineError(f"the export could not be written ({error})", where=folder) from error


@contextlib.contextmanager
def temporary_beside(folder: Path) -> Iterator[Path]:
    """The path of a temporary folder, from which to rename to ``folder``.

    Afterwards it is gone, and if ``folder`` was not written, the folders that were made to hold it are too.
    """
    missing = [parent for parent in folder.absolute().parents if not parent.exists()]
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.exists():
            with contextlib.suppress(OSError):  # another process has put something there
                for parent in missing:
                    parent.rmdir()


def _require_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.is_dir() and (folder / MANIFEST).is_file():
        Manifest.read(folder / MANIFEST, "export")
        return
    raise CheckpointError(
        "is not empty and is not an earlier export, so it is not overwritten",
        where=folder,
        fix="Name a new folder.",
    )


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Renames the finished folder onto its name; an earlier export is removed only after that."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    fsync_dir(temporary)
    replaced = folder.exists()
    if replaced:
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        if replaced:
            old.rename(folder)
        raise
    fsync_dir(folder.parent)
    if replaced:
        shutil.rmtree(old)
