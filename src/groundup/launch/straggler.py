"""Which rank hangs, when several do not get on: the one that the others wait for."""

import collections
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from groundup.core.files import write_json
from groundup.launch.env import launch_name
from groundup.launch.heartbeat import Place

_SILENT_SECONDS = 10.0
_SILENT_ELSEWHERE_SECONDS = 90.0
"""On a network file system, another machine may see a sign of life a minute late (NFS: acdirmax 60 s)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A rank that has not got on for longer than it is allowed.

    Attributes:
        rank: Which one.
        host: Its machine.
        step: In hand.
        phase: In hand.
        notes: How far it is (``Place.notes``).
        seconds: For how long.
        waits_for: What it waits for and others may owe it: a collective or "the GPU"; empty for nothing.
        at: Where its main thread is.
        stack: Of all its threads.
        launch: Of which launch it is one.
    """

    rank: int
    host: str
    step: int
    phase: str
    notes: int
    seconds: float
    waits_for: str
    at: str
    stack: str
    launch: str = dataclasses.field(default_factory=launch_name)


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Attributes: ``culprits`` are ranks; ``reason`` says why they; ``silent`` if they cannot speak."""

    culprits: tuple[int, ...]
    reason: str
    silent: bool = False


def judge(
    stalls: Mapping[int, Stall], places: Mapping[int, Place], *, host: str, now: float, world_size: int
) -> Verdict | None:
    """Who hangs; None while it cannot be told, since a rank that others wait for may still get on.

    Args:
        stalls: Rank -> its stall.
        places: Rank -> where it was last seen; without those that have left no page.
        host: The machine of the one who asks.
        now: Unix time.
        world_size: Number of ranks.
    """
    own = [stall for stall in stalls.values() if not stall.waits_for]
    waiting = [stall for stall in stalls.values() if stall.waits_for]
    if own:
        return Verdict(_furthest_behind(own), _waiting_words(waiting))
    silent = [
        rank
        for rank, place in sorted(places.items())
        if rank not in stalls and place.beat and now - place.beat > _allowed_silence(place, host)
    ]
    if silent:
        return Verdict(tuple(silent), _waiting_words(waiting), silent=True)
    if len(stalls) < world_size:
        return None
    behind = _furthest_behind(waiting)
    if len(behind) < world_size:
        ahead = [stall for stall in waiting if stall.rank not in behind]
        return Verdict(behind, f"it is behind the others: {_waiting_words(ahead)}")
    places_of = collections.Counter(stall.waits_for for stall in waiting)
    commonest, count = places_of.most_common(1)[0]
    if 2 * count > world_size > count:
        others = tuple(stall.rank for stall in waiting if stall.waits_for != commonest)
        return Verdict(others, f"all ranks wait, and {count} of {world_size} in {commonest}")
    return Verdict(behind, f"all ranks wait for each other in {', '.join(sorted(places_of))}")


def write_stall(folder: Path, stall: Stall) -> None:
    """Leaves a stall where the other ranks look for it."""
    write_json(stall_path(folder, stall.rank), dataclasses.asdict(stall))


def read_stalls(folder: Path, world_size: int) -> dict[int, Stall]:
    """The stalls that the ranks of this launch left."""
    found = {}
    for rank in range(world_size):
        path = stall_path(folder, rank)
        if path.is_file():
            try:
                stall = Stall(**json.loads(path.read_bytes()))
            except FileNotFoundError:  # it got on
                continue
            if stall.launch == launch_name():
                found[rank] = stall
    return found


def stall_path(folder: Path, rank: int) -> Path:
    """The file of a rank's stall."""
    return folder / f"rank-{rank}.stall.json"


def _furthest_behind(stalls: list[Stall]) -> tuple[int, ...]:
    least = min((stall.step, stall.notes) for stall in stalls)
    return tuple(sorted(stall.rank for stall in stalls if (stall.step, stall.notes) == least))


def _allowed_silence(place: Place, host: str) -> float:
    return _SILENT_SECONDS if place.host == host else _SILENT_ELSEWHERE_SECONDS


def _waiting_words(waiting: list[Stall]) -> str:
    if not waiting:
        return ""
    ranks = sorted(stall.rank for stall in waiting)
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    subject = f"rank {shown} waits" if len(ranks) == 1 else f"{len(ranks)} ranks ({shown}) wait"
    return f"{subject} in {min(waiting, key=lambda stall: stall.rank).waits_for}"
