"""``groundup checkpoint``: slim and average native checkpoints, and copy them to and from object storage."""

from pathlib import Path
from typing import TYPE_CHECKING

from groundup.cli.printing import folder_bytes, human_bytes
from groundup.core.errors import ConfigError
from groundup.core.progress import Progress

if TYPE_CHECKING:
    from groundup.checkpoint.lazy import LazyModel


def slim(path: Path, out: Path) -> None:
    """Write a copy with the weights only: a third of the size, for use but not to train on from.

    For example:

        groundup checkpoint slim runs/gpt2 runs/gpt2-weights

    Args:
        path: A checkpoint, or a run folder for its newest sound one.
        out: New folder, which `groundup generate`, `eval` and `convert` take.
    """
    from groundup.checkpoint.lazy import without_moments
    from groundup.checkpoint.native.model import open_native, write_native

    stored = without_moments(open_native(path))
    with Progress("writing", _weight_bytes(stored), "B") as progress:
        folder = write_native(stored, out, on_write=progress.add)
    sizes = f"{human_bytes(folder_bytes(folder))} of {human_bytes(folder_bytes(stored.source))}"
    print(f"{folder}: {len(stored.weights):,} tensors, {sizes}")


def average(
    *paths: Path,
    out: Path,
) -> None:
    """Write the mean of the weights of several checkpoints of one architecture.

    For example:

        groundup checkpoint average runs/gpt2/checkpoints/step_* --out runs/gpt2-mean

    Args:
        paths: Two checkpoints or more; run folders stand for their newest sound ones.
        out: New folder, which `groundup generate`, `eval` and `convert` take.
    """
    from groundup.checkpoint.compare import mean_of
    from groundup.checkpoint.native.model import open_native, write_native

    if len(paths) < 2:
        raise ConfigError("needs two checkpoints or more", where="checkpoint average")
    mean = mean_of([open_native(path) for path in paths])
    with Progress("averaging", _weight_bytes(mean), "B") as progress:
        folder = write_native(mean, out, on_write=progress.add)
    print(f"{folder}: the mean of {len(paths)} checkpoints")


def push(path: Path, url: str) -> None:
    """Copy a checkpoint to object storage: s3://, gs://, az://, file:// or whatever else fsspec knows.

    It counts there only when all of it has arrived.

    For example:

        groundup checkpoint push runs/gpt2 s3://bucket/runs/gpt2

    Args:
        path: A checkpoint, or a run folder for its newest sound one.
        url: Of the folder that it is put into.
    """
    from groundup.checkpoint.native.folder import resolve_checkpoint
    from groundup.checkpoint.remote import push as upload

    folder = resolve_checkpoint(path)
    with Progress("uploading", 0, "B") as progress:
        target = upload(folder, url, progress)
    print(f"{target}: complete")


def pull(url: str, run: Path) -> None:
    """Bring a checkpoint from object storage to a run folder, from which `groundup train` goes on.

    Every byte is checked against the checksums.

    For example:

        groundup checkpoint pull s3://bucket/runs/gpt2 runs/gpt2

    Args:
        url: Of a checkpoint, or of a folder whose newest complete one is meant.
        run: Run folder, new or without this step.
    """
    from groundup.checkpoint.remote import pull as download
    from groundup.core.folder_lock import locked_folder

    with locked_folder(run, doing="pulling a checkpoint"), Progress("downloading", 0, "B") as progress:
        folder = download(url, run, progress)
    print(f"{folder}: sound")


def _weight_bytes(stored: "LazyModel") -> int:
    return sum(tensor.size_bytes for tensor in stored.weights.values())
