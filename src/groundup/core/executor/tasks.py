"""Tasks with done-markers: a rerun does only those that are missing or stale.

A task writes files of its own; when they are complete, its marker appears, with the fingerprint of all
that decides their content. What comes out depends neither on who does a task nor on the order.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from annotated_types import Ge, Gt

from groundup.core.config_class import config
from groundup.core.errors import DataError
from groundup.core.files import read_json, write_json

I = TypeVar("I")  # noqa: E741  # a task's input

Report = Callable[[Any], None]
"""Takes what a task has to say while it works; it is handed to the caller of ``run_tasks``."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[I]):
    """One piece of work.

    Attributes:
        name: Its files and marker begin with it.
        fingerprint: Of everything that decides what it writes.
        input: What the work is given; it can be pickled.
    """

    name: str
    fingerprint: str
    input: I


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The outcome of a finished task.

    Attributes:
        files: Names of its files in the folder of the markers.
        result: Anything like JSON that the caller wants back, now or in a later run.
    """

    files: Sequence[str]
    result: dict[str, Any]


Work = Callable[[I, Report], Done]
"""Does a task; it can be pickled, and is handed to each process once."""


@config
class SerialRunner:
    """One task after the other in this process."""

    kind: Literal["serial"] = "serial"


@config
class ProcessRunner:
    """A task at a time in each of several processes of this machine.

    Attributes:
        workers: Number of processes.
    """

    workers: Annotated[int, Gt(0)]
    kind: Literal["processes"] = "processes"


@config
class RayRunner:
    """A task at a time on each core of a Ray cluster whose machines see the same files.

    Attributes:
        address: Of the cluster, as ``ray.init`` takes it; empty for the one that RAY_ADDRESS names, or else
            one started on this machine for the run.
        workers: Tasks at a time; 0 for one on each core of the cluster.
    """

    address: str = ""
    workers: Annotated[int, Ge(0)] = 0
    kind: Literal["ray"] = "ray"


AnyRunner = SerialRunner | ProcessRunner | RayRunner


class Markers:
    """The done-markers of a folder.

    Args:
        folder: Where the tasks' files lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def result(self, task: Task[Any]) -> dict[str, Any] | None:
        """Reads the result of a finished task; None where it is not done, is stale, or lost a file."""
        path = self._path(task)
        if not path.is_file():
            return None
        try:
            marker = read_json(path)
        except DataError:  # cannot happen to a file that appears whole, unless it was damaged since
            return None
        if not isinstance(marker, dict) or marker.get("fingerprint") != task.fingerprint:
            return None
        for name, size in marker["files"].items():
            file = self.folder / name
            if not file.is_file() or file.stat().st_size != size:
                return None
        result: dict[str, Any] = marker["result"]
        return result

    def mark(self, task: Task[Any], done: Done) -> None:
        """Marks a task as done; its files must be complete and durable."""
        sizes = {name: (self.folder / name).stat().st_size for name in done.files}
        write_json(self._path(task), {"fingerprint": task.fingerprint, "files": sizes, "result": done.result})

    def clear(self, task: Task[Any]) -> None:
        """Removes a task's marker, before its files are written again."""
        self._path(task).unlink(missing_ok=True)

    def _path(self, task: Task[Any]) -> Path:
        return self.folder / f"{task.name}.done.json"


def pending(tasks: Sequence[Task[I]], markers: Markers) -> list[Task[I]]:
    """Returns the tasks that are not done."""
    return [task for task in tasks if markers.result(task) is None]


def share_of_rank(tasks: Sequence[Task[I]], rank: int, world_size: int) -> list[Task[I]]:
    """Returns the tasks of one job of an array: each task belongs to one rank, the same in every run."""
    return list(tasks[rank::world_size])
