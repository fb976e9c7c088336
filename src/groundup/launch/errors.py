"""Error files: how each rank failed, and which failure is the root cause.

A rank writes its exception to a file at once; a rank that is killed leaves its last heartbeat. Of several
failures, those that only report the loss of another rank follow from another.
"""

import dataclasses
import re
import shutil
import signal
import socket
from collections.abc import Iterable
from pathlib import Path

from groundup.core.errors import DataError
from groundup.core.files import read_json, write_json
from groundup.launch.env import launch_id
from groundup.launch.heartbeat import Heartbeat, read_heartbeat

REQUESTED = "Interrupted"
"""The exception of a rank that was asked to stop, and has saved."""

HANG = "Hang"
"""The kind of failure of a rank that makes no progress."""

_ATTEMPT = "attempt-"
_PEER_LOSS = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|broken pipe|connectFullMesh failed"
    r"|remote process (has )?exited|remoteError|communicator was aborted|recvValue failed|sendBytes failed"
    r"|failed to (recv|send)|socket timeout|timed out (waiting|after)|wait timeout|watchdog caught"
    r"|watchdog thread terminated|gloo.*(timed out|timeout)",
    re.IGNORECASE,
)
"""What gloo, NCCL and the rendezvous say when another rank is gone."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """How a rank failed.

    Attributes:
        rank: Its number.
        time: Unix time of the exception, or at which its end was noticed.
        step: Training step in progress, from 1; 0 before the first.
        phase: What it was doing.
        kind: Class of the exception; ``exit`` for an end without one, ``Hang`` for no end at all.
        message: Of the exception.
        traceback: Of the exception, as Python prints it; empty where the user can mend it.
        host: Name of its machine.
        exit_code: Status of the process, negative for a signal; None where an exception was recorded.
        needs_user: Whether it would fail again however often the run is restarted.
        launch: The launch that it belongs to (``env.launch_id``).
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
    needs_user: bool = False
    launch: str = dataclasses.field(default_factory=launch_id)

    @property
    def is_peer_loss(self) -> bool:
        """Whether it reports the loss of another rank, and so follows from another failure."""
        return self.kind != HANG and bool(_PEER_LOSS.search(self.message))


def root_cause(failures: Iterable[RankFailure]) -> RankFailure | None:
    """Returns the failure that the others followed from: the earliest that is not the loss of a peer."""
    return min(
        (failure for failure in failures if failure.kind != REQUESTED),
        key=lambda failure: (failure.is_peer_loss, failure.time),
        default=None,
    )


def write_failure(folder: Path, failure: RankFailure) -> None:
    """Leaves a failure where the launcher and the other ranks look for it.

    Raises:
        OSError: It cannot be written: a full disk may be the failure itself.
    """
    write_json(_failure_path(folder, failure.rank), dataclasses.asdict(failure))


def read_failure(folder: Path, rank: int) -> RankFailure | None:
    """Returns the failure that a rank of this launch left; None where it left none."""
    try:
        found = RankFailure(**read_json(_failure_path(folder, rank)))
    except DataError:
        return None
    return found if found.launch == launch_id() else None


def read_failures(folder: Path, world_size: int) -> list[RankFailure]:
    """Returns all failures that the ranks of this launch left."""
    found = (read_failure(folder, rank) for rank in range(world_size))
    return [failure for failure in found if failure]


def failure_from_exit(folder: Path, rank: int, exit_code: int, seen: float, output: str) -> RankFailure:
    """Returns the failure of a rank that ended without leaving an exception.

    Args:
        folder: Where its heartbeat is.
        rank: Its number.
        exit_code: Status of the process, negative for a signal.
        seen: Unix time at which the end was noticed.
        output: The last lines it wrote.
    """
    message = f"ended with exit code {exit_code}"
    if exit_code < 0:
        message = f"killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    # Its own last words tell whether it died of another; those of C++ stand above a stack of Python's.
    if exit_code > 0 and output.strip():
        message += f": {output.splitlines()[-1].strip()}"
    elif exit_code == -signal.SIGABRT and (reasons := re.findall(r"what\(\):\s*(.+)", output)):
        message += f": {reasons[-1]}"
    heartbeat = read_heartbeat(folder, rank) or Heartbeat()
    return RankFailure(
        rank=rank,
        time=seen,
        step=heartbeat.step,
        phase=heartbeat.phase,
        kind="exit",
        message=message,
        host=heartbeat.host or socket.gethostname(),
        exit_code=exit_code,
    )


def clear(folder: Path, *, attempts: bool = False) -> None:
    """Removes what the ranks of an earlier launch left; on request what was archived of its attempts too."""
    for archived in folder.glob(f"{_ATTEMPT}*") if attempts else ():
        shutil.rmtree(archived)
    for path in folder.glob("rank-*.*"):
        path.unlink()


def clear_own(folder: Path, rank: int) -> None:
    """Removes what a rank of an earlier launch left; for ranks without a launcher of ours."""
    for path in folder.glob(f"rank-{rank}.*"):
        path.unlink()


def archive(folder: Path, attempt: int) -> None:
    """Moves what the ranks of an attempt left into a folder of its own."""
    archived = folder / f"{_ATTEMPT}{attempt}"
    archived.mkdir(exist_ok=True)
    for path in folder.glob("rank-*.*"):
        path.replace(archived / path.name)


def _failure_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.failure.json"
