"""What a rank leaves behind when it fails, and which of several failures came first.

A rank writes its exception to a file at once; a rank that is killed leaves its last place (see
``whereabouts``). So that which failed can be told from those that die of its death.
"""

import dataclasses
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterable
from pathlib import Path

from groundup.core.errors import DataError
from groundup.core.files import read_json, write_json
from groundup.launch.env import launch_name
from groundup.launch.heartbeat import Place, read_place

REQUESTED = "Interrupted"
"""The exception of a rank that was asked to stop, and has saved."""

HANG = "Hang"
"""The kind of failure of a rank that does not get on."""

_ATTEMPT = "attempt-"
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
        kind: Class of the exception; ``exit`` for an end without one, ``Hang`` for none at all.
        message: Of the exception.
        traceback: Of the exception, as Python prints it; empty where the user can mend it.
        host: Name of its machine.
        exit_code: Status of the process, negative for a signal; None where an exception was recorded.
        needs_user: Whether it would come again however often the run is restarted.
        launch: Of which launch it is one.
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
    launch: str = dataclasses.field(default_factory=launch_name)

    @property
    def follows_another(self) -> bool:
        """Whether it reads like the death of a rank whose peer is gone."""
        return self.kind != HANG and bool(_DIED_OF_A_PEER.search(self.message))


def write_record(folder: Path, failure: Failure) -> None:
    """Leaves a failure where the launcher and the other ranks look for it.

    Raises:
        OSError: It cannot be written: a full disk may be the failure itself.
    """
    write_json(_record_path(folder, failure.rank), dataclasses.asdict(failure))


def read_record(folder: Path, rank: int) -> Failure | None:
    """The failure that a rank of this launch left; None where it left none."""
    try:
        found = Failure(**read_json(_record_path(folder, rank)))
    except DataError:
        return None
    return found if found.launch == launch_name() else None


def read_records(folder: Path, world_size: int) -> list[Failure]:
    """All that the ranks of this launch left."""
    found = (read_record(folder, rank) for rank in range(world_size))
    return [failure for failure in found if failure]


def failure_of_exit(folder: Path, rank: int, exit_code: int, seen: float, output: str) -> Failure:
    """The failure of a rank that ended without leaving an exception.

    Args:
        folder: Where its place is.
        rank: Which one.
        exit_code: Status of the process, negative for a signal.
        seen: Unix time at which the end was seen.
        output: The last lines it wrote.
    """
    said = f"ended with exit code {exit_code}"
    if exit_code < 0:
        said = f"killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    # Its own last words tell whether it died of another; those of C++ stand above a stack of Python's.
    if exit_code > 0 and output.strip():
        said += f": {output.splitlines()[-1].strip()}"
    elif exit_code == -signal.SIGABRT and (reasons := re.findall(r"what\(\):\s*(.+)", output)):
        said += f": {reasons[-1]}"
    place = read_place(folder, rank) or Place()
    return Failure(
        rank=rank,
        time=seen,
        step=place.step,
        phase=place.phase,
        kind="exit",
        message=said,
        host=place.host or socket.gethostname(),
        exit_code=exit_code,
    )


def first_failure(failures: Iterable[Failure]) -> Failure | None:
    """The one that the others followed from: the earliest that is not the loss of a peer."""
    return min(
        (failure for failure in failures if failure.kind != REQUESTED),
        key=lambda failure: (failure.follows_another, failure.time),
        default=None,
    )


def clear(folder: Path, *, attempts: bool = False) -> None:
    """Removes what the ranks of an earlier launch left; on request also what was put away of its attempts."""
    for kept in folder.glob(f"{_ATTEMPT}*") if attempts else ():
        shutil.rmtree(kept)
    for path in folder.glob("rank-*.*"):
        path.unlink()


def clear_own(folder: Path, rank: int) -> None:
    """Removes what a rank of an earlier launch left; for ranks without a launcher of ours."""
    for path in folder.glob(f"rank-{rank}.*"):
        path.unlink()


def put_away(folder: Path, attempt: int) -> None:
    """Moves what the ranks of an attempt left into a folder of its own."""
    kept = folder / f"{_ATTEMPT}{attempt}"
    kept.mkdir(exist_ok=True)
    for path in folder.glob("rank-*.*"):
        path.replace(kept / path.name)


def stack_path(folder: Path, rank: int) -> Path:
    """Where a rank's stacks are written when not even Python runs in it."""
    return folder / f"rank-{rank}.stack"


def is_gone(place: Place) -> bool:
    """Whether a rank's process, on this machine, has ended; False on another machine."""
    if place.host != socket.gethostname() or not place.process:
        return False
    try:
        os.kill(place.process, 0)
        state = Path(f"/proc/{place.process}/stat")
        return state.is_file() and state.read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True
    except PermissionError:  # another user's has taken the number
        return True


def _record_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.failure.json"
