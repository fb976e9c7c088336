"""Copies checkpoints to and from object storage, through fsspec (extra ``[remote]``)."""

import shutil
from pathlib import Path

from groundup.checkpoint.native.commit import publish_checkpoint
from groundup.checkpoint.native.contents import MANIFEST, read_checkpoint_manifest
from groundup.checkpoint.native.folder import (
    CHECKPOINTS,
    MARKER,
    find_damage,
    has_step_name,
    is_checkpoint,
    remove_checkpoint,
    step_of,
)
from groundup.core.errors import CheckpointError, GroundupError
from groundup.core.files import require_free_space, temporary_path
from groundup.core.object_store import Download, ObjectStore, name_of
from groundup.core.progress import Progress


def push(folder: Path, url: str, progress: Progress) -> str:
    """Uploads a checkpoint to ``URL/step_NNNNNNN``, its marker last; returns that URL.

    Args:
        folder: The checkpoint.
        url: Of a folder, new or with other checkpoints of the run.
        progress: Counts the bytes.

    Raises:
        CheckpointError: It is damaged, or another of the same step is there.
        MachineError: The store cannot be reached or written.
    """
    if damage := find_damage(folder):
        raise CheckpointError(f"the checkpoint is damaged: {damage}", where=folder)
    target = f"{url.rstrip('/')}/{folder.name}"
    remote = ObjectStore(url)
    if remote.size(f"{target}/{MARKER}") is not None:
        if remote.read(f"{target}/{MARKER}") == (folder / MARKER).read_bytes():
            return target
        raise CheckpointError("holds another checkpoint of this step", where=target, fix="Name another URL.")
    names = [*read_checkpoint_manifest(folder).files, MANIFEST, MARKER]
    progress.total = sum((folder / name).stat().st_size for name in names)
    for name in names:
        remote.put(folder / name, f"{target}/{name}", on_write=progress.add)
    return target


def pull(url: str, run_dir: Path, progress: Progress) -> Path:
    """Downloads a checkpoint to a run folder, which then continues from it; returns its folder.

    Args:
        url: Of a checkpoint, or of a folder whose newest complete one is meant.
        run_dir: New, or of a run that does not have this step yet.
        progress: Counts the bytes.

    Raises:
        CheckpointError: There is no complete checkpoint, what arrived is damaged, or the run has that step.
        MachineError: The store cannot be reached, or the disk is full.
    """
    remote = ObjectStore(url)
    url = _newest(remote, url.rstrip("/"))
    folder = run_dir / CHECKPOINTS / name_of(url)
    if not has_step_name(folder):
        raise CheckpointError(
            "is not named like a checkpoint of a run", where=url, fix="Name it step_0001000, say."
        )
    if is_checkpoint(folder) and not find_damage(folder):
        raise CheckpointError("is there already", where=folder, fix="Name another folder.")
    temporary = temporary_path(folder, shared=True)
    remove_checkpoint(temporary)
    try:
        temporary.mkdir(parents=True)
        for name in (MANIFEST, MARKER):
            (temporary / name).write_bytes(remote.read(f"{url}/{name}"))
        try:
            files = read_checkpoint_manifest(temporary).files
        except GroundupError as error:
            raise CheckpointError(f"arrived damaged: {error.what}", where=error.where) from None
        progress.total = size_bytes = sum(record.bytes for record in files.values())
        require_free_space(folder.parent, size_bytes, "the checkpoint")
        downloads = [
            Download(f"{url}/{name}", temporary / name, record.bytes) for name, record in files.items()
        ]
        remote.get(downloads, on_read=progress.add)
        if damage := find_damage(temporary):
            raise CheckpointError(f"arrived damaged: {damage}", where=url, fix="Try again, or pull another.")
        publish_checkpoint(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _newest(remote: ObjectStore, url: str) -> str:
    if remote.size(f"{url}/{MARKER}") is not None:
        return url
    found = [path.rpartition("/")[0] for path in remote.files(f"{url}/step_*/{MARKER}")]
    complete = [path for path in found if has_step_name(Path(name_of(path)))]
    if not complete:
        raise CheckpointError("holds no complete checkpoint", where=url, fix="Check the URL.")
    return max(complete, key=lambda path: step_of(Path(name_of(path))))
