"""Checkpoint folders that are whole or do not count.

A checkpoint holds *logical* tensors: under their own names, at the true vocabulary, unsharded, in
safetensors files, so that any layout can load it. ``manifest.json`` describes it and carries every
file's checksum; the marker ``COMPLETE`` is written last. The folder is prepared under a temporary
name, fsynced and renamed; a reader passes over whatever is incomplete or damaged, saying so.
"""

import dataclasses
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from groundup.core.errors import CheckpointError, DataError, MachineError
from groundup.core.files import fsync_dir, fsync_file, require_free_space
from groundup.core.log import logger
from groundup.core.manifest import Manifest, damage, describe_files
from groundup.tokens.tokenizer import Tokenizer

_MARKER = "COMPLETE"
_MODEL = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_RANDOM = "random.safetensors"
_TOKENIZER = "tokenizer"
_FOLDER = re.compile(r"step_(\d+)")
LATEST = "latest"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that a checkpoint holds.

    Attributes:
        model: Parameter name -> logical tensor.
        optimizer: "parameter name/entry" -> logical tensor.
        random: Name of a generator -> its state (uint8).
        state: Step, samples and tokens consumed, loss scale, ... (JSON-like).
        about: Architecture, resolved config, data fingerprint, versions (JSON-like).
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    random: Mapping[str, Tensor]
    state: Mapping[str, Any]
    about: Mapping[str, Any]


def save(checkpoints_dir: Path, step: int, snapshot: Snapshot, tokenizer: Tokenizer) -> Path:
    """Writes ``step_NNNNNNN`` and then points ``latest`` to it.

    Raises:
        MachineError: The disk is full, before or while writing; older checkpoints stay intact.
    """
    folder = folder_of(checkpoints_dir, step)
    temporary = checkpoints_dir / f".{folder.name}.tmp"
    _remove(temporary)
    tensors = (*snapshot.model.values(), *snapshot.optimizer.values())
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    require_free_space(checkpoints_dir, size_bytes + (1 << 20), f"the checkpoint of step {step}")
    try:
        temporary.mkdir(parents=True)
        _save_tensors(snapshot.model, temporary / _MODEL)
        _save_tensors(snapshot.optimizer, temporary / _OPTIMIZER)
        _save_tensors(snapshot.random, temporary / _RANDOM)
        tokenizer.save(temporary / _TOKENIZER)
        names = sorted(str(p.relative_to(temporary)) for p in temporary.rglob("*") if p.is_file())
        about = {**snapshot.about, "tokenizer": tokenizer.fingerprint, "torch": torch.__version__}
        files = describe_files(temporary, names)
        Manifest(kind="checkpoint", files=files, counts=dict(snapshot.state), about=about).write(
            temporary / "manifest.json"
        )
        for name in names:
            fsync_file(temporary / name)
        (temporary / _MARKER).touch()
        fsync_file(temporary / _MARKER)
        fsync_dir(temporary)
        _remove(folder)
        temporary.rename(folder)
        fsync_dir(checkpoints_dir)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise MachineError(
            f"the checkpoint of step {step} could not be written ({error}); earlier checkpoints are intact",
            where=checkpoints_dir,
            fix="Free some space; the same command continues from the newest checkpoint.",
        ) from error
    _point_latest(folder)
    return folder


def folder_of(checkpoints_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return checkpoints_dir / f"step_{step:07d}"


def load(folder: Path, *, device: torch.device) -> Snapshot:
    """Reads a checkpoint that ``newest_verified`` or ``verify`` has found sound."""
    manifest = Manifest.read(folder / "manifest.json", "checkpoint")
    where = str(device)
    return Snapshot(
        model=load_file(folder / _MODEL, device=where),
        optimizer=load_file(folder / _OPTIMIZER, device=where),
        random=load_file(folder / _RANDOM),
        state=manifest.counts,
        about=manifest.about,
    )


def load_weights(folder: Path, *, device: torch.device) -> dict[str, Tensor]:
    """Reads the model's logical tensors only."""
    return load_file(folder / _MODEL, device=str(device))


def tokenizer_dir(folder: Path) -> Path:
    """Where a checkpoint keeps its tokenizer."""
    return folder / _TOKENIZER


def verify(folder: Path) -> str:
    """Why a checkpoint cannot be used; empty when it is whole."""
    if not (folder / _MARKER).is_file():
        return f"incomplete ({_MARKER} is missing)"
    try:
        manifest = Manifest.read(folder / "manifest.json", "checkpoint")
    except DataError as error:
        return str(error)
    return damage(folder, manifest.files)


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a native checkpoint, sound or not."""
    return (folder / "manifest.json").is_file() and (folder / _MODEL).is_file()


def newest_verified(checkpoints_dir: Path) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are named in the log. None when there is none."""
    for folder in _newest_first(checkpoints_dir):
        reason = verify(folder)
        if not reason:
            return folder
        logger.warning("skipping checkpoint %s: %s", folder, reason)
    return None


def prune(checkpoints_dir: Path, *, keep_last: int) -> None:
    """Removes all but the ``keep_last`` newest checkpoints and what unfinished saves left behind."""
    assert keep_last >= 1, "the config refuses less"
    for folder in list(_newest_first(checkpoints_dir))[keep_last:]:
        _remove(folder)
    for leftover in checkpoints_dir.glob(".step_*.tmp"):
        _remove(leftover)


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
        fix="Name a run folder of `groundup train`, one of its checkpoints, or a Hugging Face folder.",
    )


def _newest_first(checkpoints_dir: Path) -> Iterator[Path]:
    if not checkpoints_dir.is_dir():
        return
    found = [
        (int(match[1]), path) for path in checkpoints_dir.iterdir() if (match := _FOLDER.fullmatch(path.name))
    ]
    for _, path in sorted(found, reverse=True):
        yield path


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    path.touch()
    mode = path.stat().st_mode
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    path.chmod(mode)  # safetensors makes its files private


def _point_latest(folder: Path) -> None:
    """Renames a fresh symbolic link over ``latest``, so that it never dangles."""
    link = folder.parent / f".{LATEST}.tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(folder.parent / LATEST)


def _remove(folder: Path) -> None:
    """Removes a checkpoint, its marker first, so that a half-removed one does not count."""
    if folder.is_dir():
        (folder / _MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder)
