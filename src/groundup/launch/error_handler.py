"""Each rank's error handler: records its exception; without a launcher of ours it reports the root cause.

Under torchrun and srun each rank that dies of the loss of another looks up what that one left, so that the
last lines on the terminal are the cause there too.
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
from groundup.launch.env import failures_dir, launcher_pipe, own_rank, rank_from_env
from groundup.launch.error_report import describe_failure, failure_excerpt
from groundup.launch.errors import REQUESTED, RankFailure, read_failures, root_cause, write_failure
from groundup.launch.heartbeat import Heartbeat, read_heartbeat

_PATIENCE_SECONDS = 3.0  # for the failure of the rank whose loss was noticed
_POLL_SECONDS = 0.1
_SILENT_SECONDS = 3.0


def record_failure(error: BaseException) -> bool:
    """Leaves this rank's exception where the launcher and the other ranks look for it.

    Without a launcher of ours it also reports the root cause, and waits some seconds for it where this rank
    only lost another. One process alone does nothing.

    Returns:
        Whether the caller need not print the exception: it is reported, or will be.
    """
    folder = failures_dir()
    if not folder:
        return False
    is_users = isinstance(error, GroundupError)
    rank = own_rank()
    heartbeat = read_heartbeat(folder, rank) or Heartbeat()
    failure = RankFailure(
        rank=rank,
        time=time.time(),
        step=heartbeat.step,
        phase=heartbeat.phase,
        kind=type(error).__name__,
        message=str(error) or repr(error),
        traceback="" if is_users else "".join(traceback.format_exception(error)),
        needs_user=is_users and not isinstance(error, TrainingError),
    )
    try:
        write_failure(folder, failure)
    except OSError:  # a full disk may be the failure itself: the caller prints it then
        return False
    has_launcher = launcher_pipe() is not None
    if failure.kind == REQUESTED:
        return failure.rank != 0 and not has_launcher  # one prints it for all
    if has_launcher:
        return failure.rank == 0  # it shares the launcher's terminal
    report_root_cause(folder, failure, reporting_rank=failure.rank)
    return True


def report_root_cause(folder: Path, own: RankFailure, *, reporting_rank: int) -> None:
    """Prints the root cause on stderr, and tells torchrun; one rank of each machine does, and the culprit.

    Args:
        folder: Of the launch.
        own: What ended the reporting rank.
        reporting_rank: This one, which need not be the one that ``own`` names.
    """
    cause = _find_root_cause(folder, own) if own.is_peer_loss else own
    rank = rank_from_env()
    note = "" if cause.rank == reporting_rank else f" (rank {reporting_rank} ends because of it)"
    report = describe_failure(cause, log=None, oom_kills=0) + note
    stderr = sys.__stderr__ or sys.stderr  # torch.distributed puts another in its place, to number the lines
    if cause.rank == reporting_rank:
        stderr.write(failure_excerpt(cause, "") + report + "\n")
    elif rank is None or rank.local_rank == 0:
        stderr.write(report + "\n")
    stderr.flush()
    _tell_torchrun(cause, (cause.traceback if cause.rank == reporting_rank else "") + report)


def _find_root_cause(folder: Path, own: RankFailure) -> RankFailure:
    """Returns the cause of a lost peer, as far as the ranks left traces; else the loss itself."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to all when one has failed
    rank = rank_from_env()
    world_size = rank.world_size if rank else 1
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        found = [own, *read_failures(folder, world_size)]
        cause = root_cause(found)
        assert cause is not None, "own is one, and was not requested"
        if not cause.is_peer_loss:
            return cause
        missing = set(range(world_size)) - {failure.rank for failure in found}
        if time.monotonic() > deadline:
            return _find_silent(folder, missing, ended_only=False) or cause
        ended = _find_silent(folder, missing, ended_only=True)
        if ended:
            return ended
        time.sleep(_POLL_SECONDS)


def _find_silent(folder: Path, ranks: set[int], *, ended_only: bool) -> RankFailure | None:
    """Of ranks that left no failure, returns the one that has been silent for longest."""
    now = time.time()
    heartbeats = [(rank, found) for rank in ranks if (found := read_heartbeat(folder, rank))]
    for rank, heartbeat in sorted(heartbeats, key=lambda pair: pair[1].last_beat):
        silent_seconds = now - heartbeat.last_beat
        if heartbeat.has_ended:
            message = "its process has ended without a word (killed, most often for want of host memory)"
        elif (
            not ended_only and heartbeat.host != socket.gethostname() and silent_seconds > _SILENT_SECONDS
        ):  # of a rank on this machine it would be known
            message = f"no sign of life for {silent_seconds:.0f} s: its process or its machine is gone"
        else:
            continue
        return RankFailure(
            rank=rank,
            time=heartbeat.last_beat or heartbeat.time,
            step=heartbeat.step,
            phase=heartbeat.phase,
            kind="exit",
            message=message,
            host=heartbeat.host,
        )
    return None


def _tell_torchrun(cause: RankFailure, report: str) -> None:
    """Writes the error file from which torchrun takes the lines that it prints, where it asks for one."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": report, "timestamp": str(int(cause.time))}
        with contextlib.suppress(OSError):
            write_json(Path(path), {"message": {"message": report, "extraInfo": extra}})
