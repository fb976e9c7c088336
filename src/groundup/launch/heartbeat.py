"""Where each rank is: its step and phase, in a page of memory that outlives it and that others can read.

The page is a small mapped file in the folder of the launch: noting costs under a microsecond, a killed
rank's last note stays, and the other ranks and the launcher read it without asking.
"""

import dataclasses
import functools
import mmap
import os
import socket
import struct
import time
from pathlib import Path

from groundup.launch.env import launched

FOLDER_VARIABLE = "GROUNDUP_FAILURES"
"""Names the folder in which ranks leave their places and failures; unset where nobody reads them."""

LAUNCHER_VARIABLE = "GROUNDUP_LAUNCHER"
"""Set by our own launcher, which speaks for its ranks: the number of the pipe to its terminal."""

_NOTE = struct.Struct("<qqdBB46s")  # step, notes so far, Unix time, whether long, bytes of phase, phase
_BEAT_AT = _NOTE.size
_BEAT = struct.Struct("<d")  # Unix time
_PROCESS_AT = _BEAT_AT + _BEAT.size
_PROCESS = struct.Struct("<qB63s")  # process id, bytes of host, host
_PAGE_BYTES = _PROCESS_AT + _PROCESS.size


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank was last seen.

    Attributes:
        step: Training step in hand, from 1; 0 before the first.
        phase: What it is doing.
        notes: How often it has said so: the higher, the further it is.
        time: Unix time of the last note.
        is_long: Whether the phase may take far longer than a step.
        beat: Unix time of its last sign of life, whether it gets on or not; 0 before the first.
        process: Its number on its machine.
        host: Name of its machine.
    """

    step: int = 0
    phase: str = "start"
    notes: int = 0
    time: float = 0.0
    is_long: bool = True
    beat: float = 0.0
    process: int = 0
    host: str = ""


def progress_note(step: int, phase: str, *, is_long: bool = False) -> None:
    """Notes where this rank is, for the report of a failure and against hangs; cheap (a microsecond).

    Args:
        step: Training step in hand.
        phase: What is being done: "reading data", "training", ...
        is_long: Whether it may take far longer than a step, as saving may.
    """
    _here.step, _here.phase, _here.is_long = step, phase, is_long
    _here.notes += 1
    page = _page()
    if page:
        text = phase.encode()[:46]
        _NOTE.pack_into(page, 0, step, _here.notes, time.time(), is_long, len(text), text)


def progress_continues() -> None:
    """Notes that the present phase gets on, for phases without a known length."""
    progress_note(_here.step, _here.phase, is_long=_here.is_long)


def here() -> Place:
    """Where this rank is."""
    return Place(step=_here.step, phase=_here.phase, notes=_here.notes, is_long=_here.is_long)


def beat(*, flush: bool) -> None:
    """Gives a sign of life.

    Args:
        flush: Write it through to the file system, for readers on other machines.
    """
    page = _page()
    if page:
        _BEAT.pack_into(page, _BEAT_AT, time.time())
        if flush:
            page.flush()


def read_place(folder: Path, rank: int) -> Place | None:
    """Where a rank was last seen; None where it has left no page."""
    try:
        page = page_path(folder, rank).read_bytes()
    except FileNotFoundError:
        return None
    if len(page) < _PAGE_BYTES:  # just being made
        return None
    step, notes, noted, is_long, size, phase = _NOTE.unpack_from(page)
    (last_beat,) = _BEAT.unpack_from(page, _BEAT_AT)
    process, host_size, host = _PROCESS.unpack_from(page, _PROCESS_AT)
    return Place(
        step=step,
        phase=phase[:size].decode(errors="replace") or "start",
        notes=notes,
        time=noted,
        is_long=bool(is_long),
        beat=last_beat,
        process=process,
        host=host[:host_size].decode(errors="replace"),
    )


def own_rank() -> int:
    """The number of this process among the ranks; 0 where it is alone."""
    rank = launched()
    return rank.rank if rank else 0


def page_path(folder: Path, rank: int) -> Path:
    """The file of a rank's page."""
    return folder / f"rank-{rank}.progress"


@dataclasses.dataclass(slots=True)
class _Here:
    step: int = 0
    phase: str = "start"
    notes: int = 0
    is_long: bool = True


_here = _Here()  # one process is at one place


@functools.cache
def _page() -> mmap.mmap | None:
    """This rank's page, in the page cache of a file; None where nobody reads it."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    path = page_path(Path(folder), own_rank())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # a process of an earlier launch may still have it mapped
    with path.open("x+b") as file:
        file.truncate(_PAGE_BYTES)
        page = mmap.mmap(file.fileno(), _PAGE_BYTES)
    host = socket.gethostname().encode()[:63]
    _PROCESS.pack_into(page, _PROCESS_AT, os.getpid(), len(host), host)
    return page
