"""Checkpoints to and from object storage, through fsspec (extra ``[remote]``)."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

from groundup.checkpoint import store
from groundup.checkpoint.commit import put_in_place
from groundup.checkpoint.contents import MANIFEST, read_manifest
from groundup.core.errors import CheckpointError, GroundupError
from groundup.core.files import fsync_file, require_free_space
from groundup.core.remote import Store, name_of


def push(folder: Path, url: str, *, on_write: Callable[[int], None] | None = None) -> str:
    """Copies a checkpoint to ``URL/step_NNNNNNN``, its marker last; returns the URL.

    Args:
        folder: The checkpoint.
        url: Of a folder, new or with other checkpoints of the run.
        on_write: Told the bytes of each file that is copied.

    Raises:
        CheckpointError: It is damaged, or another of the same step is there.
        MachineError: The store cannot be reached or written.
    """
    if reason := store.verify(folder):
        raise CheckpointError(f"the checkpoint is damaged: {reason}", where=folder)
    target = f"{url.rstrip('/')}/{folder.name}"
    remote = Store(url)
    marker = (folder / store.MARKER).read_bytes()
    if remote.find(f"{target}/{store.MARKER}"):
        if remote.content(f"{target}/{store.MARKER}") == marker:
            return target
        raise CheckpointError("holds another checkpoint of this step", where=target, fix="Name another URL.")
    for name in (*read_manifest(folder).files, MANIFEST, store.MARKER):
        remote.put(folder / name, f"{target}/{name}")
        if on_write:
            on_write((folder / name).stat().st_size)
    return target


def pull(url: str, run_dir: Path, *, on_read: Callable[[int], None] | None = None) -> Path:
    """Brings a checkpoint to a run folder, which then goes on from it; returns its folder.

    Args:
        url: Of a checkpoint, or of a folder whose newest complete one is meant.
        run_dir: New, or of a run that does not have this step yet.
        on_read: Told the bytes of each piece that arrives.

    Raises:
        CheckpointError: There is no complete checkpoint, what arrived is damaged, or the run has that step.
        MachineError: The store cannot be reached, or the disk is full.
    """
    remote = Store(url)
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
            (temporary / name).write_bytes(remote.content(f"{url}/{name}"))
        files = _files_of(temporary)
        require_free_space(folder.parent, sum(files.values()), "the checkpoint")
        for name in files:
            fetch = functools.partial(_fetch, remote, f"{url}/{name}", temporary / name, on_read)
            remote.insist(f"{url}/{name}", fetch)
        if reason := store.verify(temporary):
            raise CheckpointError(f"arrived damaged: {reason}", where=url, fix="Try again, or pull another.")
        put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    store.point_latest(folder)
    return folder


def _newest(remote: Store, url: str) -> str:
    if remote.find(f"{url}/{store.MARKER}"):
        return url
    found = [path.rpartition("/")[0] for path in remote.matches(f"{url}/step_*/{store.MARKER}")]
    complete = [path for path in found if store.is_step(Path(name_of(path)))]
    if not complete:
        raise CheckpointError("holds no complete checkpoint", where=url, fix="Check the URL.")
    return max(complete, key=lambda path: store.step_of(Path(name_of(path))))


def _fetch(remote: Store, url: str, path: Path, on_read: Callable[[int], None] | None) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        for piece in remote.stream(url):
            file.write(piece)
            if on_read:
                on_read(len(piece))
    fsync_file(path)


def _files_of(folder: Path) -> dict[str, int]:
    """The files that a manifest names, with their sizes; none may lead out of the folder."""
    try:
        files = read_manifest(folder).files
    except GroundupError as error:
        raise CheckpointError(f"arrived damaged: {error.what}", where=error.where) from None
    return {name: described["bytes"] for name, described in files.items()}
