"""Heartbeats: each rank's step and phase, in a memory-mapped file that other processes read.

Recording costs about a microsecond, a killed rank's last record stays in its file, and the other ranks and
the launcher read it without asking.
"""

import dataclasses
import mmap
import os
import socket
import struct
import time
from pathlib import Path
from typing import Self

from groundup.launch.env import failures_dir, own_rank

# step, records so far, Unix time of the record, of the last sign of life, process id, is_long, phase, host
_FORMAT = struct.Struct("<qqddq?47p64p")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a rank last said of itself.

    Attributes:
        step: Training step in progress, from 1; 0 before the first.
        phase: What it is doing: "reading data", "training", ...
        num_records: How often it has recorded progress: a rank with a higher number is further.
        time: Unix time of the last record.
        is_long: Whether the phase may take far longer than a step.
        last_beat: Unix time of the last sign of life, with progress or without; 0 before the first.
        process: Process id on its machine.
        host: Name of its machine.
    """

    step: int = 0
    phase: str = "start"
    num_records: int = 0
    time: float = 0.0
    is_long: bool = True
    last_beat: float = 0.0
    process: int = 0
    host: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; False for one on another machine, of which that is not known."""
        if self.host != socket.gethostname() or not self.process:
            return False
        try:
            os.kill(self.process, 0)
            state = Path(f"/proc/{self.process}/stat")
            return state.is_file() and state.read_text().rpartition(")")[2].split()[0] == "Z"
        except (ProcessLookupError, FileNotFoundError):
            return True
        except PermissionError:  # another user's has taken the number
            return True


class HeartbeatWriter:
    """Writes the heartbeat of this rank.

    Args:
        path: The file, as ``heartbeat_path`` names it; None where nobody reads it.
    """

    def __init__(self, path: Path | None) -> None:
        self.current = Heartbeat()
        self._last_beat = 0.0
        self._host = socket.gethostname().encode()
        self._map = _map_new_file(path) if path else None

    @classmethod
    def from_env(cls) -> Self:
        """Returns the writer of this rank, where the environment names a folder for it."""
        folder = failures_dir()
        return cls(heartbeat_path(folder, own_rank()) if folder else None)

    def record(self, step: int, phase: str, *, is_long: bool = False) -> None:
        """Records progress.

        Args:
            step: Training step in progress.
            phase: What is being done.
            is_long: Whether it may take far longer than a step, as saving may.
        """
        self.current = Heartbeat(
            step=step,
            phase=phase,
            num_records=self.current.num_records + 1,
            time=time.time(),
            is_long=is_long,
        )
        self._write()

    def keep_alive(self) -> None:
        """Records progress within the present phase, for phases of unknown length."""
        self.record(self.current.step, self.current.phase, is_long=self.current.is_long)

    def beat(self, *, flush: bool) -> None:
        """Gives a sign of life without progress; called from the watchdog's thread.

        Args:
            flush: Write it through to the file system, for readers on other machines.
        """
        self._last_beat = time.time()
        self._write()
        if flush and self._map:
            self._map.flush()

    def _write(self) -> None:
        if self._map:
            now = self.current
            fields = (now.step, now.num_records, now.time, self._last_beat, os.getpid(), now.is_long)
            _FORMAT.pack_into(self._map, 0, *fields, now.phase.encode(), self._host)


def read_heartbeat(folder: Path, rank: int) -> Heartbeat | None:
    """Returns the last heartbeat of a rank; None where it has left none."""
    try:
        content = heartbeat_path(folder, rank).read_bytes()
    except FileNotFoundError:
        return None
    if len(content) < _FORMAT.size:  # just being made
        return None
    step, num_records, recorded, last_beat, process, is_long, phase, host = _FORMAT.unpack_from(content)
    return Heartbeat(
        step=step,
        phase=phase.decode(errors="replace") or "start",
        num_records=num_records,
        time=recorded,
        is_long=is_long,
        last_beat=last_beat,
        process=process,
        host=host.decode(errors="replace"),
    )


def heartbeat_path(folder: Path, rank: int) -> Path:
    """Returns the path of a rank's heartbeat file."""
    return folder / f"rank-{rank}.heartbeat"


def _map_new_file(path: Path) -> mmap.mmap:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # a process of an earlier launch may still have it mapped
    with path.open("x+b") as file:
        file.truncate(_FORMAT.size)
        return mmap.mmap(file.fileno(), _FORMAT.size)
