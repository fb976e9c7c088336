"""Writes the files of a checkpoint, and gives it its name once they are complete."""

from collections.abc import Callable, Mapping
from pathlib import Path

from groundup.checkpoint.companions import Companions
from groundup.checkpoint.lazy import LazyTensor
from groundup.checkpoint.native.contents import (
    CHUNKS,
    MANIFEST,
    TOKENIZER,
    CheckpointAbout,
    CheckpointManifest,
    TrainingCounts,
    file_name,
)
from groundup.checkpoint.native.folder import (
    MARKER,
    find_damage,
    free_name,
    point_latest,
    remove_checkpoint,
)
from groundup.checkpoint.safetensors import write_safetensors
from groundup.core.errors import MachineError
from groundup.core.files import atomic_write, checksum, fsync_dir, fsync_file, fsync_tree
from groundup.core.log import logger
from groundup.core.manifest import FileRecord, describe_files, write_manifest
from groundup.tokens.tokenizer.base import Tokenizer

Groups = Mapping[str, Mapping[str, LazyTensor]]
"""Tensors by group ("model", "optimizer", "random", ...) and name."""

MARGIN_BYTES = 1 << 20
"""Of what a checkpoint has beside its tensors."""
_REPLACED = ".{}.replaced"


def write_groups(
    folder: Path,
    groups: Groups,
    *,
    rank: int = 0,
    num_ranks: int = 1,
    on_write: Callable[[int], None] | None = None,
) -> dict[str, FileRecord]:
    """Writes what a rank has to write, a file a group, fsynced; returns their sizes and checksums.

    Args:
        folder: Of the checkpoint, under its temporary name.
        groups: The rank's tensors.
        rank: Its number.
        num_ranks: Of all that write.
        on_write: Receives the bytes of each tensor when it is written.
    """
    files = {}
    for group, tensors in groups.items():
        if not tensors and num_ranks > 1:
            continue
        path = folder / file_name(group, rank, num_ranks)
        written = write_safetensors(path, tensors, on_write=on_write)
        fsync_file(path)
        files[path.name] = FileRecord(bytes=path.stat().st_size, checksum=written)
    return files


def complete_checkpoint(
    folder: Path,
    files: Mapping[str, FileRecord],
    *,
    counts: TrainingCounts,
    about: CheckpointAbout,
    tokenizer: Tokenizer,
    companions: Companions,
) -> CheckpointManifest:
    """Writes what stands beside the tensors, fsynced: the tokenizer, the manifest and last the marker."""
    tokenizer.save(folder / TOKENIZER)
    companions.write(folder / TOKENIZER)
    fsync_tree(folder / TOKENIZER)
    beside = [path for path in (folder / TOKENIZER).rglob("*") if path.is_file()]
    beside += [folder / CHUNKS] if (folder / CHUNKS).exists() else []
    names = sorted(str(path.relative_to(folder)) for path in beside)
    manifest = CheckpointManifest(
        counts=counts, files={**files, **describe_files(folder, names)}, about=about
    )
    write_manifest(folder / MANIFEST, manifest)
    with atomic_write(folder / MARKER) as file:
        file.write(checksum(folder / MANIFEST).encode() + b"\n")
    return manifest


def save_failure(where: Path, step: int, error: OSError) -> MachineError:
    """Returns what to raise when a checkpoint could not be written."""
    return MachineError(
        f"the checkpoint of step {step} could not be written ({error}); earlier checkpoints are intact",
        where=where,
        fix="Free some space; the same command continues from the newest checkpoint.",
    )


def publish_checkpoint(temporary: Path, folder: Path, *, replaces: bool = False) -> None:
    """Gives a complete checkpoint, whose files are fsynced, its name, and points ``latest`` to it.

    What has the name already is moved aside first and removed only after that, so that one of the two is
    there at any instant.

    Args:
        temporary: The checkpoint.
        folder: Its name. What is there is left under another one, in the log.
        replaces: A sound checkpoint that is there is removed.
    """
    for inner in temporary.rglob("*"):
        if inner.is_dir():
            fsync_dir(inner)
    fsync_dir(temporary)
    replaced = folder.with_name(_REPLACED.format(folder.name))
    if folder.exists() or folder.is_symlink():
        reason = find_damage(folder)
        if replaces and not reason:
            remove_checkpoint(replaced)
            folder.rename(replaced)
        else:
            aside = free_name(folder.with_name(f"{'damaged' if reason else 'other'}_{folder.name}"))
            folder.rename(aside)
            logger.warning("%s was there already (%s) and is now %s", folder, reason or "sound", aside.name)
    temporary.rename(folder)
    fsync_dir(folder.parent)
    remove_checkpoint(replaced)
    point_latest(folder)


def recover_replaced(checkpoints_dir: Path) -> None:
    """Ends a replacement that was interrupted: the old checkpoint has its name again, or is removed."""
    for replaced in sorted(checkpoints_dir.glob(_REPLACED.format("step_*"))):
        folder = checkpoints_dir / replaced.name.removeprefix(".").removesuffix(".replaced")
        if folder.exists():
            remove_checkpoint(replaced)
        else:
            replaced.rename(folder)
