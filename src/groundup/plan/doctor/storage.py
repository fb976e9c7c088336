"""Room on disks, and shared memory."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from groundup.plan.doctor.finding import Finding, Machine

_GIB = 2**30
_SHARED = _GIB
"""What NCCL's buffers of a few ranks take; Docker grants 64 MiB."""
_FOR_RUNS, _LITTLE = 20 * _GIB, _GIB
"""A checkpoint of GPT-2 345M with its optimizer is 4 GB."""


def shared_memory(machine: Machine) -> Iterator[Finding]:
    """Size of /dev/shm, by which ranks of one machine exchange data."""
    path = machine.root / "dev/shm"
    if not path.is_dir():
        return
    usage = shutil.disk_usage(path)
    found = f"{_size(usage.free)} of {_size(usage.total)} free in /dev/shm"
    if usage.free >= _SHARED:
        yield Finding("shared memory", "ok", found)
        return
    yield Finding(
        "shared memory",
        "problem" if len(machine.driver.gpus) > 1 else "warning",
        found,
        "Ranks on one machine exchange data through it, and end by a bus error where it is full.",
        "docker run --shm-size=8g (or --ipc=host); else remove what lies in /dev/shm, or: mount -o"
        " remount,size=8G /dev/shm",
    )


def run_folder(machine: Machine) -> Iterator[Finding]:
    """Whether runs can be written, and how much of them."""
    folder = machine.run_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        why = "A run writes its checkpoints and records there."
        yield Finding(
            "run folder", "problem", f"{folder} cannot be written to", why, "Name another: --run-dir DIR"
        )
        return
    yield _room(
        "run folder", folder, least=_FOR_RUNS, fix="Free some space, or name another disk by run_dir."
    )


def temporary_folder(machine: Machine) -> Iterator[Finding]:
    """Whether compilers can write to the temporary folder and start what they wrote."""
    folder = Path(tempfile.gettempdir())
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        yield Finding(
            "temporary folder",
            "warning",
            f"{folder} is mounted noexec",
            "torch.compile loads the code that it has compiled from there.",
            "export TMPDIR=$HOME/tmp (and mkdir it)",
        )
        return
    yield _room("temporary folder", folder, least=_GIB, fix="Free some space, or: export TMPDIR=FOLDER")


def _room(check: str, folder: Path, *, least: int, fix: str) -> Finding:
    usage, inodes = shutil.disk_usage(folder), os.statvfs(folder)
    found = f"{_size(usage.free)} of {_size(usage.total)} free at {folder}"
    if inodes.f_files and not inodes.f_favail:
        return Finding(
            check, "problem", f"{found}, and no inode", "No file can be made.", "Remove small files."
        )
    if usage.free < min(least, _LITTLE):
        return Finding(check, "problem", found, "Nothing of use fits.", fix)
    if usage.free < least:
        why = "A checkpoint of GPT-2 345M takes 4 GB, and two are kept by default."
        return Finding(check, "warning", found, why, fix)
    return Finding(check, "ok", found)


def _size(count: float) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / 2**20:.0f} MiB"
