"""Writes files and folders atomically; checksums; checks of free space."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import xxhash

from groundup.core.errors import DataError, MachineError

DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Numbers of the system's errors."""
_PROBE_BYTES = 4096
_CHUNK_BYTES = 1 << 20


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside ``path``; fsynced and renamed onto it on success.

    On any exception the temporary file is removed and ``path`` is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Makes a temporary folder beside ``folder``; fsynced and renamed onto it on success, whatever it held.

    On any exception it and the parents made for it are removed, and ``folder`` is left as it was.
    """
    missing = [parent for parent in folder.absolute().parents if not parent.exists()]
    temporary, old = temporary_path(folder), folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        fsync_tree(temporary)
        if folder.exists():
            folder.rename(old)
        temporary.rename(folder)
        fsync_dir(folder.parent)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for path in (temporary, old):
            shutil.rmtree(path, ignore_errors=True)
        if not folder.exists():
            with contextlib.suppress(OSError):  # another process has put something there
                for parent in missing:
                    parent.rmdir()


def temporary_path(path: Path, *, shared: bool = False) -> Path:
    """Returns a hidden name beside ``path`` to write to first: of this process or of several (``shared``)."""
    return path.with_name(f".{path.name}.tmp" if shared else f".{path.name}.{os.getpid()}.tmp")


def unfinished(folder: Path, beginning: str = "") -> list[Path]:
    """Finds the temporary files that killed processes left for names that begin like this."""
    return list(folder.glob(f".{glob.escape(beginning)}*.tmp"))


def fsync_tree(folder: Path) -> None:
    """Makes a folder with all that is below it durable."""
    for path in (*folder.rglob("*"), folder):
        fsync_file(path)


def fsync_dir(path: Path) -> None:
    """Makes renames within a folder durable."""
    fsync_file(path)


def fsync_file(path: Path) -> None:
    """Makes the content of a file that was written and closed durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_cache_dir(name: str) -> Path:
    """Returns the user's cache folder of this name: below ``$XDG_CACHE_HOME``, or ``~/.cache``.

    Raises:
        RuntimeError: There is no such variable, and the user has no home.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG Base Directory Specification: a relative path counts as unset.
    return (named if named.is_absolute() else Path.home() / ".cache") / "groundup" / name


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Writes ``value`` as JSON, atomically; for people to read unless ``indent`` is None."""
    with atomic_write(path) as file:
        file.write(json.dumps(value, indent=indent, ensure_ascii=False).encode() + b"\n")


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        DataError: The file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError("no such file", where=path, fix="Check the path.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", 1)
        raise DataError(f"not valid JSON ({error})", where=f"{path}:{line}") from None


def checksum(path: Path, *, algorithm: str = "xxh3", on_read: Callable[[int], None] | None = None) -> str:
    """Returns the xxh3-128 (or ``sha256``) of a file, as ``xxh3:<hex digits>``.

    ``on_read`` gets the size of each read.
    """
    digest = hashlib.sha256() if algorithm == "sha256" else xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            if on_read:
                on_read(len(chunk))
    return f"{algorithm}:{digest.hexdigest()}"


def require_writable(folder: Path, *, where: str) -> None:
    """Makes a folder, and refuses one in which nothing can be written.

    Raises:
        MachineError: It is a file, below one, in a file system of the kernel's, read-only, or on a full disk;
            ``where`` is the setting that names it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise MachineError(
            f"nothing can be written to {folder} ({error.strerror})",
            where=where,
            fix="Free some space." if error.errno in DISK_IS_FULL else "Name another folder.",
        ) from error


def require_free_space(folder: Path, size_bytes: int, what: str) -> None:
    """Refuses to begin a write that the disk cannot hold.

    Raises:
        MachineError: Less than ``size_bytes`` is free on the disk that holds ``folder``.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < size_bytes:
        raise MachineError(
            f"{what} needs {size_bytes / 1e9:.2f} GB and the disk has {free / 1e9:.2f} GB free",
            where=folder,
            fix="Free some space or choose another folder.",
        )
