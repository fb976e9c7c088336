"""Checkpoints to and from object storage, through fsspec (extra ``[remote]``)."""

import shutil
from pathlib import Path

from groundup.checkpoint.native import store
from groundup.checkpoint.native.commit import rename_into_place
from groundup.checkpoint.native.contents import MANIFEST, read_manifest
from groundup.core.errors import CheckpointError, GroundupError
from groundup.core.files import require_free_space
from groundup.core.object_store import Download, ObjectStore, name_of
from groundup.core.progress import Progress


def push(folder: Path, url: str, progress: Progress) -> str:
    """Uploads a checkpoint to ``URL/step_NNNNNNN``, its marker last; returns that URL.

    Args:
        folder: The checkpoint.
        url: Of a folder, new or with other checkpoints of the run.
        progress: Told the bytes.

    Raises:
        CheckpointError: It is damaged, or another of the same step is there.
        MachineError: The store cannot be reached or written.
    """
    if reason := store.verify(folder):
        raise CheckpointError(f"the checkpoint is damaged: {reason}", where=folder)
    target = f"{url.rstrip('/')}/{folder.name}"
    remote = ObjectStore(url)
    if remote.size(f"{target}/{store.MARKER}") is not None:
        if remote.read(f"{target}/{store.MARKER}") == (folder / store.MARKER).read_bytes():
            return target
        raise CheckpointError("holds another checkpoint of this step", where=target, fix="Name another URL.")
    names = [*read_manifest(folder).files, MANIFEST, store.MARKER]
    progress.total = sum((folder / name).stat().st_size for name in names)
    for name in names:
        remote.put(folder / name, f"{target}/{name}", on_write=progress.add)
    return target


def pull(url: str, run_dir: Path, progress: Progress) -> Path:
    """Downloads a checkpoint to a run folder, which then continues from it; returns its folder.

    Args:
        url: Of a checkpoint, or of a folder whose newest complete one is meant.
        run_dir: New, or of a run that does not have this step yet.
        progress: Told the bytes.

    Raises:
        CheckpointError: There is no complete checkpoint, what arrived is damaged, or the run has that step.
        MachineError: The store cannot be reached, or the disk is full.
    """
    remote = ObjectStore(url)
    url = _newest(remote, url.rstrip("/"))
    folder = run_dir / "checkpoints" / name_of(url)
    if not store.is_step(folder):
        raise CheckpointError(
            "is not named like a checkpoint of a run", where=url, fix="Name it step_0001000, say."
        )
    if store.is_checkpoint(folder) and not store.verify(folder):
        raise CheckpointError("is there already", where=folder, fix="Name another folder.")
    temporary = store.temporary_of(folder.parent, store.step_of(folder))
    store.remove(temporary)
    try:
        temporary.mkdir(parents=True)
        for name in (MANIFEST, store.MARKER):
            (temporary / name).write_bytes(remote.read(f"{url}/{name}"))
        sizes = _sizes(temporary)
        progress.total = sum(sizes.values())
        require_free_space(folder.parent, sum(sizes.values()), "the checkpoint")
        downloads = [Download(f"{url}/{name}", temporary / name, size) for name, size in sizes.items()]
        remote.get(downloads, on_read=progress.add)
        if reason := store.verify(temporary):
            raise CheckpointError(f"arrived damaged: {reason}", where=url, fix="Try again, or pull another.")
        rename_into_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    store.point_latest(folder)
    return folder


def _newest(remote: ObjectStore, url: str) -> str:
    if remote.size(f"{url}/{store.MARKER}") is not None:
        return url
    found = [path.rpartition("/")[0] for path in remote.files(f"{url}/step_*/{store.MARKER}")]
    complete = [path for path in found if store.is_step(Path(name_of(path)))]
    if not complete:
        raise CheckpointError("holds no complete checkpoint", where=url, fix="Check the URL.")
    return max(complete, key=lambda path: store.step_of(Path(name_of(path))))


def _sizes(folder: Path) -> dict[str, int]:
    """The bytes of each file that a manifest lists; none may lie outside the folder."""
    try:
        files = read_manifest(folder).files
    except GroundupError as error:
        raise CheckpointError(f"arrived damaged: {error.what}", where=error.where) from None
    return {name: recorded.bytes for name, recorded in files.items()}
