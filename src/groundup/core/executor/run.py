"""Runs tasks one after the other, in several processes, or on a Ray cluster; see ``tasks``."""

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from groundup.core.executor.local import Worker, worker_processes
from groundup.core.executor.ray import run_on_ray
from groundup.core.executor.tasks import AnyRunner, Markers, ProcessRunner, Report, SerialRunner, Task, Work

I = TypeVar("I")  # noqa: E741  # a task's input


def run_tasks(
    tasks: Sequence[Task[I]],
    work: Work[I],
    markers: Markers,
    runner: AnyRunner,
    *,
    on_report: Report,
) -> None:
    """Runs the tasks and marks each when it is done.

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
        case _:
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
    """The main loop of a worker: receives tasks, sends reports and results, until the other end closes."""
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
    """Yields the tasks that the parent sends; when it has gone, this process exits, even during a task."""
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
