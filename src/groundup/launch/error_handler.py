"""What a rank does with its own failure: leaves it for the others, and names the first of all failures.

Under our launcher that is the launcher's word; under torchrun and srun each rank that dies of another
looks up what that one left, so that the last words are the cause there too.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

from groundup.core.errors import GroundupError, TrainingError
from groundup.core.files import write_json
from groundup.launch.env import launched
from groundup.launch.errors import (
    REQUESTED,
    Failure,
    first_failure,
    is_gone,
    read_records,
    write_record,
)
from groundup.launch.heartbeat import FOLDER_VARIABLE, LAUNCHER_VARIABLE, here, own_rank, read_place
from groundup.launch.root_cause import describe_failure, evidence

_PATIENCE_SECONDS = 3.0  # for the failure of the one whose loss was noticed
_LOOK_SECONDS = 0.1
_SILENT_SECONDS = 3.0


def record_failure(error: BaseException) -> bool:
    """Leaves this rank's exception where the launcher and the other ranks look for it.

    Without a launcher of ours it also says what failed first, and waits some seconds for it where this rank
    only lost another. One process alone does nothing.

    Returns:
        Whether to say nothing of it here: it is said, or will be.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return False
    is_users = isinstance(error, GroundupError)
    place = here()
    failure = Failure(
        rank=own_rank(),
        time=time.time(),
        step=place.step,
        phase=place.phase,
        kind=type(error).__name__,
        message=str(error) or repr(error),
        traceback="" if is_users else "".join(traceback.format_exception(error)),
        needs_user=is_users and not isinstance(error, TrainingError),
    )
    try:
        write_record(Path(folder), failure)
    except OSError:  # a full disk may be the failure itself: the caller prints it then
        return False
    if failure.kind == REQUESTED:
        return failure.rank != 0 and LAUNCHER_VARIABLE not in os.environ  # one says it for all
    if LAUNCHER_VARIABLE in os.environ:
        return failure.rank == 0  # it shares the launcher's terminal
    say_last_words(Path(folder), failure, own_rank=failure.rank)
    return True


def say_last_words(folder: Path, own: Failure, *, own_rank: int) -> None:
    """Names the first failure on stderr, and to torchrun; one rank of each machine does, and the culprit.

    Args:
        folder: Of the launch.
        own: What this rank died of.
        own_rank: This one, of which ``own`` need not be.
    """
    first = _first_of_all(folder, own) if own.follows_another else own
    rank = launched()
    told = "" if first.rank == own_rank else f" (rank {own_rank} ends because of it)"
    words = describe_failure(first, log=None, oom_kills=0) + told
    stderr = sys.__stderr__ or sys.stderr  # torch.distributed puts another in its place, to number the lines
    if first.rank == own_rank:
        stderr.write(evidence(first, "") + words + "\n")
    elif rank is None or rank.local_rank == 0:
        stderr.write(words + "\n")
    stderr.flush()
    _tell_torchrun(first, (first.traceback if first.rank == own_rank else "") + words)


def _first_of_all(folder: Path, own: Failure) -> Failure:
    """The cause of a lost peer, as far as the ranks left traces; else the loss itself."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to all when the first has failed
    rank = launched()
    world_size = rank.world_size if rank else 1
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        found = [own, *read_records(folder, world_size)]
        first = first_failure(found)
        assert first is not None, "own is one, and was not requested"
        if not first.follows_another:
            return first
        missing = set(range(world_size)) - {failure.rank for failure in found}
        if time.monotonic() > deadline:
            return _last_seen(folder, missing, gone_only=False) or first
        gone = _last_seen(folder, missing, gone_only=True)
        if gone:
            return gone
        time.sleep(_LOOK_SECONDS)


def _last_seen(folder: Path, ranks: set[int], *, gone_only: bool) -> Failure | None:
    """Of ranks that left no failure, the one that has been silent for longest."""
    now = time.time()
    places = [(rank, place) for rank in ranks if (place := read_place(folder, rank))]
    for rank, place in sorted(places, key=lambda pair: pair[1].beat):
        if is_gone(place):
            message = "its process has ended without a word (killed, most often for want of host memory)"
        elif not gone_only and place.host != socket.gethostname() and now - place.beat > _SILENT_SECONDS:
            # Of a rank on this machine it would be known.
            message = f"no sign of life for {now - place.beat:.0f} s: its process or its machine is gone"
        else:
            continue
        return Failure(
            rank=rank,
            time=place.beat or place.time,
            step=place.step,
            phase=place.phase,
            kind="exit",
            message=message,
            host=place.host,
        )
    return None


def _tell_torchrun(first: Failure, words: str) -> None:
    """Writes the file from which torchrun takes the last lines that it prints, where it asks for one."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": words, "timestamp": str(int(first.time))}
        with contextlib.suppress(OSError):
            write_json(Path(path), {"message": {"message": words, "extraInfo": extra}})
