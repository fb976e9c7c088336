"""Checkpoint folders that are whole or do not count.

A checkpoint holds *logical* tensors: under their own names, at the true vocabulary, in safetensors files, so
that any layout can load it. ``manifest.json`` describes it and carries every file's checksum; the marker
``COMPLETE``, with the manifest's, is written last. The folder is prepared under a temporary name, fsynced and
renamed; a reader passes over whatever is incomplete or damaged, saying so.
"""

import dataclasses
import itertools
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from groundup.checkpoint.native.contents import MANIFEST, TOKENIZER, read_checkpoint_manifest, read_chunks
from groundup.core.errors import CheckpointError, GroundupError
from groundup.core.files import checksum
from groundup.core.log import logger
from groundup.core.manifest import FileRecord
from groundup.core.manifest import find_damage as find_damaged_file
from groundup.parallel.mesh import ParallelMesh

MARKER = "COMPLETE"  # holds the checksum of the manifest, which has those of all other files
CHECKPOINTS = "checkpoints"
"""Folder of a run that holds its checkpoints."""
_NAME = re.compile(r"step_(\d+)")
_LATEST = "latest"


def checkpoint_path(checkpoints_dir: Path, step: int) -> Path:
    """Returns where the checkpoint of a step lies."""
    return checkpoints_dir / f"step_{step:07d}"


def tokenizer_dir(folder: Path) -> Path:
    """Returns where a checkpoint keeps its tokenizer."""
    return folder / TOKENIZER


def is_checkpoint(folder: Path) -> bool:
    """Tells whether a folder is a native checkpoint, sound or not."""
    return (folder / MANIFEST).is_file() and any(folder.glob("model*.safetensors"))


def has_step_name(folder: Path) -> bool:
    """Tells whether a folder is named like a checkpoint of a run."""
    return _NAME.fullmatch(folder.name) is not None


def step_of(folder: Path) -> int:
    """Returns the step that a checkpoint's folder is named by."""
    match = _NAME.fullmatch(folder.name)
    assert match, "list_checkpoints names such folders only"
    return int(match[1])


def list_checkpoints(checkpoints_dir: Path) -> list[Path]:
    """Lists the checkpoints of a run, sound or not, the oldest first."""
    if not checkpoints_dir.is_dir():
        return []
    found = [folder for folder in checkpoints_dir.iterdir() if has_step_name(folder)]
    return sorted(found, key=lambda folder: (step_of(folder), folder))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """What is wrong with a checkpoint; None where nothing is.

    Attributes:
        state: Concerns what training continues from.
        tokenizer: Concerns the stored tokenizer, which the data of a run has too.
    """

    state: str | None = None
    tokenizer: str | None = None

    @property
    def first(self) -> str | None:
        """Returns the damage to name; None of a sound checkpoint."""
        return self.state or self.tokenizer


def check_files(folder: Path, mesh: ParallelMesh | None = None) -> Damage:
    """Compares every byte of a checkpoint with the checksums.

    Args:
        folder: The checkpoint.
        mesh: Ranks that each check a share of the files, together, and find the same.
    """
    if mesh is None or mesh.size == 1:
        return _check_listed(folder, _list_files(folder))
    listed = mesh.all_gather(_list_files(folder) if mesh.is_first else None)[0]
    shares: list[dict[str, FileRecord]] = [{} for _ in range(mesh.size)]
    for name, record in sorted(listed.files.items(), key=lambda item: -item[1].bytes):
        least = min(shares, key=lambda share: sum(one.bytes for one in share.values()))
        least[name] = record
    own = dataclasses.replace(listed, files=shares[mesh.rank])
    every: list[Damage] = mesh.all_gather(_check_listed(folder, own))
    return Damage(
        state=next((one.state for one in every if one.state), None),
        tokenizer=next((one.tokenizer for one in every if one.tokenizer), None),
    )


def find_damage(folder: Path, mesh: ParallelMesh | None = None) -> str | None:
    """Finds why a checkpoint cannot be used; None of a sound one. Reads every byte, as ``check_files``."""
    return check_files(folder, mesh).first


def find_missing(folder: Path) -> str | None:
    """Finds why a checkpoint is not complete, by the sizes of its files alone; None when it is."""
    listed = _list_files(folder)
    for name, record in listed.files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (size := path.stat().st_size) != record.bytes:
            return f"{name} has {size:,} bytes, expected {record.bytes:,}"
    return listed.first


def find_newest(
    checkpoints_dir: Path,
    mesh: ParallelMesh | None = None,
    *,
    tokenizer: str = "",
    last_step: int | None = None,
) -> tuple[Path | None, dict[Path, str]]:
    """Finds the newest sound checkpoint, None without one, and the damage of those newer than it.

    The log names what is passed over.

    Args:
        checkpoints_dir: Of a run.
        mesh: Ranks that look together, and find the same.
        tokenizer: Fingerprint of a tokenizer at hand: the copy in a checkpoint that was made with the same
            may be damaged.
        last_step: Later checkpoints do not count; None for all.
    """
    folders = list_checkpoints(checkpoints_dir)[::-1]
    if mesh is not None:
        folders = mesh.all_gather(folders)[0]
    warn = logger.warning if mesh is None or mesh.is_first else logger.debug
    damaged: dict[Path, str] = {}
    for folder in folders:
        if last_step is not None and step_of(folder) > last_step:
            continue
        found = check_files(folder, mesh)
        if found.first is None:
            return folder, damaged
        if tokenizer and not found.state and read_checkpoint_manifest(folder).about.tokenizer == tokenizer:
            warn("%s: %s; the tokenizer of the data is the same and is used", folder, found.tokenizer)
            return folder, damaged
        damaged[folder] = found.first
        warn("skipping checkpoint %s: %s", folder, damaged[folder])
    return None, damaged


def describe_damage(damaged: Mapping[Path, str]) -> str:
    """Returns the damage of each checkpoint in one line."""
    return "; ".join(f"{folder.name}: {reason}" for folder, reason in damaged.items())


def resolve_checkpoint(path: Path) -> Path:
    """Returns the checkpoint that a path means: itself, or the newest sound one of a run folder.

    Raises:
        CheckpointError: There is none, or the one named is damaged.
    """
    if is_checkpoint(path):
        if reason := find_damage(path):
            raise CheckpointError(
                f"the checkpoint is damaged: {reason}", where=path, fix="Name an older one or the run folder."
            )
        return path.resolve()
    damaged: dict[Path, str] = {}
    for folder in (path / CHECKPOINTS, path):
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


def point_latest(folder: Path) -> None:
    """Renames a fresh symbolic link over ``latest``, so that it never dangles."""
    link, latest = folder.parent / f".{_LATEST}.tmp", folder.parent / _LATEST
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    if latest.is_dir() and not latest.is_symlink():
        copy = free_name(latest.with_name(f"copy_of_{_LATEST}"))  # made by a program that follows links
        latest.rename(copy)
        logger.warning("%s was a folder, not a link, and is now %s", latest, copy.name)
    link.replace(latest)


def remove_checkpoint(folder: Path) -> None:
    """Removes a checkpoint, all at once: under another name first. Of a link only the link."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.is_dir():
        removed = folder.with_name(f".{folder.name.strip('.')}.removed.tmp")
        shutil.rmtree(removed, ignore_errors=True)
        folder.rename(removed)
        shutil.rmtree(removed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Listed(Damage):
    """The files that a checkpoint should have, and what is wrong before any of them is read."""

    files: dict[str, FileRecord] = dataclasses.field(default_factory=dict)


def _list_files(folder: Path) -> _Listed:
    if not (folder / MARKER).is_file():
        return _Listed(state=f"incomplete ({MARKER} is missing)")
    if not (folder / MANIFEST).is_file():
        return _Listed(state=f"{MANIFEST} is missing")
    if checksum(folder / MANIFEST).encode() != (folder / MARKER).read_bytes().strip():
        return _Listed(state=f"{MANIFEST} does not match its checksum in {MARKER}")
    try:
        files = read_checkpoint_manifest(folder).files
        read_chunks(folder, files)
    except GroundupError as error:
        return _Listed(state=f"{Path(error.where).name}: {error.what}")
    paths = sorted((folder / TOKENIZER).rglob("*"))
    found = (str(path.relative_to(folder)) for path in paths if path.is_file() and path.name[0] != ".")
    unlisted = next((name for name in found if name not in files), None)
    return _Listed(files=files, tokenizer=unlisted and f"{unlisted} is not listed in {MANIFEST}")


def _check_listed(folder: Path, listed: _Listed) -> Damage:
    tokenizer = {name: listed.files[name] for name in listed.files if name.startswith(f"{TOKENIZER}/")}
    state = {name: listed.files[name] for name in listed.files if name not in tokenizer}
    return Damage(
        state=listed.state or find_damaged_file(folder, state),
        tokenizer=listed.tokenizer or find_damaged_file(folder, tokenizer),
    )


def free_name(path: Path) -> Path:
    """Returns the path, or ``path-2`` and so on where it exists already."""
    paths = (path.with_name(f"{path.name}-{count}") if count > 1 else path for count in itertools.count(1))
    return next(free for free in paths if not free.exists())
