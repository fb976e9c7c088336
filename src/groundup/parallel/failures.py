"""What a rank leaves behind when it fails, and which of several failures came first.

A rank under the launcher writes its exception to a file at once, and keeps its step and phase in a page of
memory that outlives it, so that a rank that is killed can be told from the ranks that die of its death.
"""

import contextlib
import dataclasses
import functools
import mmap
import os
import re
import signal
import socket
import struct
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from groundup.core.errors import DataError, GroundupError
from groundup.core.files import read_json, write_json
from groundup.parallel.launched import launched

FOLDER_VARIABLE = "GROUNDUP_FAILURES"
"""Names the folder in which ranks leave their failures; unset where nobody reads them."""

_REQUESTED = "Interrupted"  # the exception of a rank that was asked to stop, and has saved

_PLACE = struct.Struct("<qdB47s")  # step, Unix time, bytes of phase, phase
_DIED_OF_A_PEER = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|broken pipe|connectFullMesh failed"
    r"|remote process (has )?exited|remoteError|communicator was aborted|recvValue failed|sendBytes failed"
    r"|failed to (recv|send)|socket timeout|timed out (waiting|after)|wait timeout|watchdog caught"
    r"|watchdog thread terminated|gloo.*(timed out|timeout)",
    re.IGNORECASE,
)
"""What gloo, NCCL and the rendezvous say when another rank is gone."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a rank failed.

    Attributes:
        rank: Which one.
        time: Unix time of the exception, or at which its end was seen.
        step: Training step in hand, from 1; 0 before the first.
        phase: What it was doing.
        kind: Class of the exception; ``exit`` for an end without one.
        message: Of the exception.
        traceback: Of the exception, as Python prints it; empty where the user can mend it.
        host: Name of its machine.
        exit_code: Status of the process, negative for a signal; None where an exception was recorded.
    """

    rank: int
    time: float
    step: int
    phase: str
    kind: str
    message: str
    traceback: str = ""
    host: str = dataclasses.field(default_factory=socket.gethostname)
    exit_code: int | None = None

    @property
    def follows_another(self) -> bool:
        """Whether it reads like the death of a rank whose peer is gone."""
        return bool(_DIED_OF_A_PEER.search(self.message))


def progress_note(step: int, phase: str) -> None:
    """Notes where this rank is, for the report of a failure; cheap (under a microsecond).

    Args:
        step: Training step in hand.
        phase: What is being done: "data", "forward", "backward", ...
    """
    _here.step, _here.phase = step, phase
    page = _page()
    if page:
        text = phase.encode()[:47]
        _PLACE.pack_into(page, 0, step, time.time(), len(text), text)


def record_failure(error: BaseException) -> bool:
    """Leaves this rank's exception where the launcher looks for it; without a launcher, does nothing.

    Returns:
        Whether to say nothing of it here: this rank shares the launcher's terminal, and it is the launcher
        that tells the first failure from those that follow.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    rank = launched() if folder else None
    if not folder or not rank:
        return False
    mendable = isinstance(error, GroundupError)
    record = Failure(
        rank=rank.rank,
        time=time.time(),
        step=_here.step,
        phase=_here.phase,
        kind=type(error).__name__,
        message=str(error) or repr(error),
        traceback="" if mendable else "".join(traceback.format_exception(error)),
    )
    try:
        write_json(_record_path(Path(folder), rank.rank), dataclasses.asdict(record))
    except OSError:  # a full disk may be the failure itself: the caller prints it then
        return False
    return rank.rank == 0 and record.kind != _REQUESTED


def read_record(folder: Path, rank: int) -> Failure | None:
    """The exception that a rank left; None where it left none."""
    try:
        return Failure(**read_json(_record_path(folder, rank)))
    except DataError:
        return None


def failure_of_exit(folder: Path, rank: int, exit_code: int, seen: float, output: str) -> Failure:
    """The failure of a rank that ended without leaving an exception.

    Args:
        folder: Where its progress is.
        rank: Which one.
        exit_code: Status of the process, negative for a signal.
        seen: Unix time at which the end was seen.
        output: The last lines it wrote.
    """
    step, phase = 0, "start"
    with contextlib.suppress(FileNotFoundError, struct.error):
        step, _, size, text = _PLACE.unpack_from(_page_path(folder, rank).read_bytes())
        phase = text[:size].decode(errors="replace") or phase
    said = f"ended with exit code {exit_code}"
    if exit_code < 0:
        said = f"killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    # Its own last words tell whether it died of another; those of C++ stand above a stack of Python's.
    if exit_code > 0 and output.strip():
        said += f": {output.splitlines()[-1].strip()}"
    elif exit_code == -signal.SIGABRT and (reasons := re.findall(r"what\(\):\s*(.+)", output)):
        said += f": {reasons[-1]}"
    return Failure(
        rank=rank, time=seen, step=step, phase=phase, kind="exit", message=said, exit_code=exit_code
    )


def first_failure(failures: Iterable[Failure]) -> Failure | None:
    """The one that the others followed from: the earliest that is not the loss of a peer."""
    return min(
        (failure for failure in failures if failure.kind != _REQUESTED),
        key=lambda failure: (failure.follows_another, failure.time),
        default=None,
    )


def clear(folder: Path) -> None:
    """Removes what the ranks of an earlier launch left."""
    for path in folder.glob("rank-*.*"):
        path.unlink()


@dataclasses.dataclass(slots=True)
class _Here:
    step: int = 0
    phase: str = "start"


_here = _Here()  # one process is at one place


@functools.cache
def _page() -> mmap.mmap | None:
    """This rank's page of progress, in the page cache of a file: it outlives a killed process."""
    folder = os.environ.get(FOLDER_VARIABLE)
    rank = launched() if folder else None
    if not folder or not rank:
        return None
    with _page_path(Path(folder), rank.rank).open("w+b") as file:
        file.truncate(_PLACE.size)
        return mmap.mmap(file.fileno(), _PLACE.size)


def _page_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.progress"


def _record_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.failure.json"
