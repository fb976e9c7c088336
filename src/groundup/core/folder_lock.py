"""Lets one process at a time work in a folder, on one machine or on a shared file system.

Two files say so. ``lock`` is locked by the kernel, which knows at once whether the holder lives, but not on
every file system and often not across machines. ``lock.json`` names the holder, who renews its time every few
seconds: a holder on another machine is alive while that time changes.
"""

import contextlib
import dataclasses
import datetime
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from groundup.core.errors import DataError, MachineError
from groundup.core.files import read_json, write_json
from groundup.core.lock import locked
from groundup.core.log import logger

_BEAT_SECONDS = 10.0
_BEATS_TO_WATCH = 1.5  # at least, before a holder on another machine counts as gone
_STALE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that works in a folder.

    Attributes:
        doing: What it does, such as "training".
        process: Its number.
        started: When it started, as its machine counts; tells it from a later process of the same number.
        host: Name of its machine.
        machine: Tells the machine, since its last start, and its container from others.
        since: When it took the folder.
        launch: Tells the processes of one launch from those of another; empty where there is one process.
    """

    doing: str
    process: int
    started: str
    host: str
    machine: str
    since: str
    launch: str = ""

    @classmethod
    def this_process(cls, doing: str, launch: str = "") -> "Holder":
        """Returns what other processes need to know of this one."""
        return cls(
            doing=doing,
            process=os.getpid(),
            started=_started(os.getpid()),
            host=socket.gethostname(),
            machine=_machine(),
            since=datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
            launch=launch,
        )

    @property
    def is_here(self) -> bool:
        """Tells whether it is, or was, a process that this one can see."""
        return self.machine == _machine()

    @property
    def is_alive(self) -> bool:
        """Tells whether a process of this machine still runs."""
        return _started(self.process) == self.started != ""

    def refusal(self, folder: Path) -> MachineError:
        """Returns the error for another process that wants the folder."""
        return MachineError(
            f"process {self.process} on {self.host} is {self.doing} in this folder since {self.since}",
            where=folder,
            fix="Wait until it ends, or stop it, or name another folder.",
        )


@contextlib.contextmanager
def locked_folder(
    folder: Path,
    *,
    doing: str,
    launch: str = "",
    beat_seconds: float = _BEAT_SECONDS,
    stale_seconds: float = _STALE_SECONDS,
) -> Iterator[None]:
    """Locks a folder while entered. A living holder is named at once; the lock of a dead one is taken over.

    One on another machine that gave a sign of life within the last minute is watched until the next sign, or
    for the rest of that minute.

    Args:
        folder: Made where missing.
        doing: What is done, for the message to others.
        launch: See ``Holder``.
        beat_seconds: Between signs of life; all holders use the same.
        stale_seconds: After so long without one, a holder on another machine counts as gone.

    Raises:
        MachineError: Another process holds it, or it cannot be written.
    """
    path = folder / "lock.json"
    require_unlocked(folder)  # before all else: to this very process the kernel would give its lock again
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "lock", what=doing))
        except MachineError:
            holder = _read(path)
            if holder is None:
                raise
            raise holder.refusal(folder) from None
        except OSError as error:
            raise MachineError(
                f"cannot be written ({error.strerror})", where=folder, fix="Name another folder."
            ) from None
        _outlive(path, beat_seconds, stale_seconds)
        write_json(path, dataclasses.asdict(Holder.this_process(doing, launch)))
        ended = threading.Event()
        beats = threading.Thread(target=_beat, args=(path, ended, beat_seconds), daemon=True)
        beats.start()
        try:
            yield
        finally:
            ended.set()
            beats.join()
            path.unlink(missing_ok=True)


def require_unlocked(folder: Path, *, launch: str = "") -> None:
    """Refuses a folder that a living process of this machine holds, unless it is of the same launch.

    Raises:
        MachineError: Naming the process.
    """
    holder = _read(folder / "lock.json")
    if holder and holder.is_here and holder.is_alive and not (launch and holder.launch == launch):
        raise holder.refusal(folder)


def _outlive(path: Path, beat_seconds: float, stale_seconds: float) -> None:
    """Waits until the named holder is certainly gone.

    Raises:
        MachineError: It is alive.
    """
    holder, began, first = _read(path), time.monotonic(), _time_of(path)
    if holder is None:
        return
    if holder.is_here:
        require_unlocked(path.parent)
    else:
        logger.info("watching for a sign of life of process %s on %s", holder.process, holder.host)
    while not holder.is_here:
        found = _time_of(path)
        if found != first:
            raise holder.refusal(path.parent)
        watched = time.monotonic() - began
        (path.parent / "lock").touch()  # for what time it is on the file system, whatever our clock says
        age = _time_of(path.parent / "lock") - found
        if watched >= stale_seconds or (watched >= _BEATS_TO_WATCH * beat_seconds and age >= stale_seconds):
            break
        time.sleep(min(_LOOK_SECONDS, beat_seconds / 4))
    logger.warning(
        "%s: process %s on %s, which was %s since %s, is gone: going on without it",
        *(path.parent, holder.process, holder.host, holder.doing, holder.since),
    )


def _beat(path: Path, ended: threading.Event, seconds: float) -> None:
    while not ended.wait(seconds):
        with contextlib.suppress(OSError):  # the folder may be gone, or the file system away for a while
            os.utime(path)


def _read(path: Path) -> Holder | None:
    """Reads the holder from a lock file; None where the file is missing or malformed."""
    try:
        return Holder(**read_json(path))
    except (DataError, TypeError, OSError):
        return None


def _time_of(path: Path) -> float:
    """Returns a file's time of change, 0 where it is gone; it is opened, so that NFS asks the server."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return 0.0


def _machine() -> str:
    """Identifies machine, boot and container: it is equal for processes that see each other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _started(process: int) -> str:
    """Returns the start time of a process of this machine; empty where it does not exist or has ended."""
    try:
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if Path("/proc/self/stat").exists() or not _exists(process) else "unknown"
    return "" if after_name[0] in "ZX" else after_name[19]  # fields 3 and 22 of proc_pid_stat(5)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
