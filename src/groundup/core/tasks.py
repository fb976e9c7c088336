"""Work cut into tasks that leave done-markers: a rerun does only what is missing or stale.

A task writes files of its own; when they are complete, its marker appears, with the fingerprint of all
that decides their content. What comes out depends neither on who does a task nor on the order.
"""

import contextlib
import dataclasses
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from annotated_types import Ge, Gt

from groundup.core.config_class import config
from groundup.core.errors import DataError
from groundup.core.files import read_json, write_json
from groundup.core.processes import Worker, worker_processes

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
    """What a finished task leaves.

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


Runner = SerialRunner | ProcessRunner | RayRunner


class Markers:
    """The done-markers of a folder.

    Args:
        folder: Where the tasks' files lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def result(self, task: Task[Any]) -> dict[str, Any] | None:
        """What a finished task left; None where it is not done, was done otherwise, or lost a file."""
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
        """Says that a task is done; its files must be complete and durable."""
        sizes = {name: (self.folder / name).stat().st_size for name in done.files}
        write_json(self._path(task), {"fingerprint": task.fingerprint, "files": sizes, "result": done.result})

    def clear(self, task: Task[Any]) -> None:
        """Takes a marker away, before the task's files are written anew."""
        self._path(task).unlink(missing_ok=True)

    def _path(self, task: Task[Any]) -> Path:
        return self.folder / f"{task.name}.done.json"


def pending(tasks: Sequence[Task[I]], markers: Markers) -> list[Task[I]]:
    """The tasks that are not done."""
    return [task for task in tasks if markers.result(task) is None]


def share_of_rank(tasks: Sequence[Task[I]], rank: int, world_size: int) -> list[Task[I]]:
    """The tasks of one job of an array: each task falls to one rank, the same in every run."""
    return list(tasks[rank::world_size])


def run_tasks(
    tasks: Sequence[Task[I]],
    work: Work[I],
    markers: Markers,
    runner: SerialRunner | ProcessRunner | RayRunner,
    *,
    on_report: Report,
) -> None:
    """Does the tasks and marks each as it is done.

    Args:
        tasks: All of them are done; ``pending`` says which need it.
        work: What is done to each.
        markers: Where they are marked.
        runner: Who does it.
        on_report: Called here with what the tasks report (under Ray: when a task is done).

    Raises:
        MachineError: A worker was killed, or Ray is missing.
        Exception: What a task raised; the others are stopped, and the finished ones stay marked.
    """
    match runner:
        case SerialRunner():
            for task in tasks:
                markers.mark(task, work(task.input, on_report))
        case ProcessRunner():
            _run_in_processes(tasks, work, markers, runner.workers, on_report)
        case RayRunner():
            from groundup.core.ray_tasks import run_on_ray

            for report in run_on_ray(tasks, work, markers, runner.address, runner.workers):
                on_report(report)


def _run_in_processes(
    tasks: Sequence[Task[I]],
    work: Work[I],
    markers: Markers,
    num_workers: int,
    on_report: Report,
) -> None:
    waiting = deque(tasks)
    doing: dict[Any, Task[I]] = {}
    with worker_processes(min(num_workers, len(tasks)), _serve, work, markers) as workers:
        idle = deque(workers)
        of_connection = {worker.connection: worker for worker in workers}
        while waiting or doing:
            while waiting and idle:
                worker = idle.popleft()
                doing[worker.connection] = waiting.popleft()
                with _named_when_killed(worker, doing[worker.connection]):
                    worker.connection.send(doing[worker.connection])
            for connection in wait(list(doing)):
                worker = of_connection[connection]  # type: ignore[index]
                task = doing[connection]
                with _named_when_killed(worker, task):
                    kind, value = worker.connection.recv()
                if kind == "failed":
                    raise value
                if kind == "done":
                    idle.append(worker)
                    del doing[connection]
                else:
                    on_report(value)


@contextlib.contextmanager
def _named_when_killed(worker: Worker, task: Task[Any]) -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionResetError, BrokenPipeError):
        raise worker.killed(f"in {task.name}") from None


def _serve(connection: Connection, work: Work[Any], markers: Markers) -> None:
    """A worker's life: tasks in, reports and results out, until the other end closes."""
    for task in _tasks_from(connection):
        try:
            markers.mark(task, work(task.input, lambda value: connection.send(("report", value))))
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:  # raised again in the parent
            connection.send(("failed", error))
            return
        connection.send(("done", None))


def _tasks_from(connection: Connection) -> Iterator[Task[Any]]:
    """The tasks that the parent sends; when it is gone, this process ends at once, in the midst of one."""
    tasks: queue.SimpleQueue[Task[Any]] = queue.SimpleQueue()

    def receive() -> None:
        while True:
            try:
                tasks.put(connection.recv())
            except (EOFError, OSError):
                os._exit(1)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        yield tasks.get()
