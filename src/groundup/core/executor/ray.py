"""Tasks on a Ray cluster (extra ``[ray]``), which is imported on use: it takes over ten seconds to start."""

import importlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from groundup.core.errors import MachineError
from groundup.core.executor.tasks import Markers, Task, Work
from groundup.core.log import logger

I = TypeVar("I")  # noqa: E741  # a task's input

_AHEAD = 2
_REACH_SECONDS = 10.0


def run_on_ray(
    tasks: Sequence[Task[I]], work: Work[I], markers: Markers, address: str, num_workers: int
) -> Iterator[Any]:
    """Does the tasks, each on one core; yields the reports of each when it is done.

    Relative paths mean what they mean here: each task works in this process's folder.

    Raises:
        MachineError: Ray is not installed, the cluster cannot be reached, or a worker died.
        Exception: What a task raised.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError:
        raise MachineError("Ray is not installed", fix="Type: pip install 'groundup[ray]'") from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
    if not address and not os.environ.get("RAY_ADDRESS"):
        options["num_cpus"] = num_workers or None
        logger.info("starting Ray on this machine")
    else:
        del options["include_dashboard"]
        options["address"] = address or os.environ["RAY_ADDRESS"]
        _require_reachable(options["address"])
    try:
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise MachineError(
            f"no Ray cluster to work on ({error})", where=address, fix="Check --ray-address."
        ) from None
    try:
        remote = ray.remote(num_cpus=1, max_retries=0)(_do)
        shared = ray.put((work, markers, Path.cwd()))
        limit = num_workers or _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        doing: dict[Any, Task[I]] = {}
        for task in tasks:
            if len(doing) >= limit:
                yield from _reports_of_next(ray, doing)
            doing[remote.remote(shared, task)] = task
        while doing:
            yield from _reports_of_next(ray, doing)
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Ray itself tries for many minutes, and says so on stderr all the while."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto" and the like
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()
    except OSError as error:
        raise MachineError(
            f"no Ray cluster answers ({error})",
            where=address,
            fix="Check --ray-address; `ray start --head` prints it.",
        ) from None


def _reports_of_next(ray: Any, doing: dict[Any, Task[Any]]) -> list[Any]:
    ready, _ = ray.wait(list(doing), num_returns=1)
    task = doing.pop(ready[0])
    try:
        result = ray.get(ready[0])
    except ray.exceptions.RayError as error:
        raise MachineError(
            f"Ray lost the worker of {task.name} ({str(error).splitlines()[0]})",
            fix="Look whether its machine ran out of memory; run again: what is finished is kept.",
        ) from None
    if isinstance(result, Exception):
        raise result
    reports: list[Any] = result
    return reports


def _do(shared: tuple[Work[I], Markers, Path], task: Task[I]) -> list[Any] | Exception:
    """Runs on the cluster."""
    work, markers, folder = shared
    reports: list[Any] = []
    try:
        os.chdir(folder)
        markers.mark(task, work(task.input, reports.append))
    except Exception as error:  # raised again by the driver
        return error
    return reports
