"""Locks between processes that are released when their holder ends, however it ends."""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from groundup.core.errors import MachineError
from groundup.core.log import logger

_HELD_BY_ANOTHER = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path, *, what: str, shared: bool = False) -> Iterator[None]:
    """Holds a lock file while entered; never waits.

    The lock is the kernel's, not the file's existence: that of a dead process is free, and workers do not
    inherit it. On a file system without locks it says so in the log and goes on.

    Args:
        path: The lock file; made where missing, and left behind.
        what: What is done under the lock, for the message.
        shared: Holders of a shared lock put up with each other.

    Raises:
        MachineError: Another process holds it; names the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _open_and_lock(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, what) as file:
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _open_and_lock(path: Path, kind: int, what: str) -> IO[str]:
    while True:
        file = path.open("a+")
        try:
            fcntl.lockf(file, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                logger.warning("%s: this file system has no locks: see that nothing else does %s", path, what)
                return file
            file.seek(0)
            holder = file.readline().strip() or "another process"
            file.close()
            if error.errno not in _HELD_BY_ANOTHER:
                raise
            raise MachineError(
                f"{holder} is doing {what} already",
                where=path,
                fix="Wait until it ends, or stop it, or give this one another name.",
            ) from None
        if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
            return file
        file.close()  # the holder before us removed the file: what we locked is no longer there
        path.parent.mkdir(parents=True, exist_ok=True)
