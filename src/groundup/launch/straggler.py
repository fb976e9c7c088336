"""Hang attribution: finds the rank that the others are blocked on."""

import collections
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from groundup.core.files import write_json
from groundup.launch.env import launch_id
from groundup.launch.heartbeat import Heartbeat

_SILENT_SECONDS = 10.0
_SILENT_ELSEWHERE_SECONDS = 90.0
"""On a network file system, another machine may see a heartbeat a minute late (NFS: acdirmax 60 s)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A rank that has made no progress for longer than it is allowed.

    Attributes:
        rank: Its number.
        host: Its machine.
        step: Training step in progress.
        phase: What it was doing.
        num_records: How far it is (``Heartbeat.num_records``).
        seconds: Time without progress.
        waits_for: A collective or "the GPU", for which other ranks may be to blame; empty for neither.
        at: Innermost frame of its main thread.
        stack: Stacks of all its threads.
        launch: The launch that it belongs to (``env.launch_id``).
    """

    rank: int
    host: str
    step: int
    phase: str
    num_records: int
    seconds: float
    waits_for: str
    at: str
    stack: str
    launch: str = dataclasses.field(default_factory=launch_id)


@dataclasses.dataclass(frozen=True, slots=True)
class Straggler:
    """Attributes: ``ranks`` are to blame; ``reason`` says why; ``silent`` if they cannot speak themselves."""

    ranks: tuple[int, ...]
    reason: str
    silent: bool = False


def find_straggler(
    stalls: Mapping[int, Stall],
    heartbeats: Mapping[int, Heartbeat],
    *,
    host: str,
    now: float,
    world_size: int,
) -> Straggler | None:
    """Returns the ranks to blame; None while some rank that others wait for may still make progress.

    The order of evidence: a rank that waits in no collective; a rank without a heartbeat; and where all
    ranks wait, those behind the others, or those that wait elsewhere than most.

    Args:
        stalls: Rank -> its stall.
        heartbeats: Rank -> its last heartbeat; without those that have left none.
        host: The machine of the rank that asks.
        now: Unix time.
        world_size: Number of ranks.
    """
    independent = [stall for stall in stalls.values() if not stall.waits_for]
    waiting = [stall for stall in stalls.values() if stall.waits_for]
    if independent:
        return Straggler(_furthest_behind(independent), _describe_waiting(waiting))
    silent = [
        rank
        for rank, heartbeat in sorted(heartbeats.items())
        if rank not in stalls and heartbeat.last_beat and now - heartbeat.last_beat > _grace(heartbeat, host)
    ]
    if silent:
        return Straggler(tuple(silent), _describe_waiting(waiting), silent=True)
    if len(stalls) < world_size:
        return None
    behind = _furthest_behind(waiting)
    if len(behind) < world_size:
        ahead = [stall for stall in waiting if stall.rank not in behind]
        return Straggler(behind, f"it is behind the others: {_describe_waiting(ahead)}")
    collectives = collections.Counter(stall.waits_for for stall in waiting)
    commonest, count = collectives.most_common(1)[0]
    if 2 * count > world_size > count:
        others = tuple(stall.rank for stall in waiting if stall.waits_for != commonest)
        return Straggler(others, f"all ranks wait, and {count} of {world_size} in {commonest}")
    return Straggler(behind, f"all ranks wait for each other in {', '.join(sorted(collectives))}")


def write_stall(folder: Path, stall: Stall) -> None:
    """Leaves a stall where the other ranks look for it."""
    write_json(stall_path(folder, stall.rank), dataclasses.asdict(stall))


def read_stalls(folder: Path, world_size: int) -> dict[int, Stall]:
    """Returns the stalls that the ranks of this launch left, by rank."""
    found = {}
    for rank in range(world_size):
        path = stall_path(folder, rank)
        if path.is_file():
            try:
                stall = Stall(**json.loads(path.read_bytes()))
            except FileNotFoundError:  # it has made progress
                continue
            if stall.launch == launch_id():
                found[rank] = stall
    return found


def stall_path(folder: Path, rank: int) -> Path:
    """Returns the path of a rank's stall."""
    return folder / f"rank-{rank}.stall.json"


def _furthest_behind(stalls: list[Stall]) -> tuple[int, ...]:
    least = min((stall.step, stall.num_records) for stall in stalls)
    return tuple(sorted(stall.rank for stall in stalls if (stall.step, stall.num_records) == least))


def _grace(heartbeat: Heartbeat, host: str) -> float:
    return _SILENT_SECONDS if heartbeat.host == host else _SILENT_ELSEWHERE_SECONDS


def _describe_waiting(waiting: list[Stall]) -> str:
    if not waiting:
        return ""
    ranks = sorted(stall.rank for stall in waiting)
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    subject = f"rank {shown} waits" if len(ranks) == 1 else f"{len(ranks)} ranks ({shown}) wait"
    return f"{subject} in {min(waiting, key=lambda stall: stall.rank).waits_for}"
