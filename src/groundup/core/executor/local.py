"""Worker processes, each with a connection; they end with their parent, and only it handles Ctrl-C."""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Literal

from groundup.core.errors import ConfigError, MachineError
from groundup.core.executor.tasks import ProcessRunner, SerialRunner

_UNSAFE_TO_FORK = frozenset({"torch", "tokenizers", "pyarrow", "ray"})


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """A process and our end of its connection."""

    process: Any
    connection: Connection

    def killed(self, doing: str) -> MachineError:
        """Returns the error for a worker whose connection broke."""
        self.process.join(timeout=5)
        code = self.process.exitcode
        signal_name = f" ({signal.Signals(-code).name})" if code is not None and code < 0 else ""
        return MachineError(
            f"a worker process ended with exit code {code}{signal_name} {doing}",
            fix="It was killed, most often for want of memory: run again with fewer --workers;"
            " what is finished is kept.",
        )


@contextlib.contextmanager
def worker_processes(number: int, target: Callable[..., None], *arguments: Any) -> Iterator[list[Worker]]:
    """Starts processes that run ``target(connection, *arguments)``; ends them when the block is left.

    Start them before any thread, so that they can be forked and share what is loaded.
    """
    method = _start_method()
    context: Any = multiprocessing.get_context(method)
    workers: list[Worker] = []
    try:
        for _ in range(number):
            ours, theirs = context.Pipe()
            # A forked child inherits our ends: it closes them, or no worker would see us end.
            inherited = [*(worker.connection for worker in workers), ours] if method == "fork" else []
            # No daemon: it may have processes of its own. When we end, its connection breaks, and it ends.
            process = context.Process(target=_live, args=(target, theirs, inherited, arguments))
            process.start()
            theirs.close()
            workers.append(Worker(process, ours))
        yield workers
    finally:
        for worker in workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


def number_of_workers(workers: int | None) -> int:
    """Returns the number of processes of a setting: None is one for each core.

    Raises:
        ConfigError: Negative.
    """
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 0:
        raise ConfigError(f"{workers} processes", where="workers", fix="Give 0 or more.")
    return workers


def runner_of(workers: int | None) -> SerialRunner | ProcessRunner:
    """Returns the runner for this machine, by the setting of ``number_of_workers``: 0 is this process."""
    number = number_of_workers(workers)
    return ProcessRunner(workers=number) if number else SerialRunner()


def _start_method() -> Literal["fork", "spawn"]:
    """Chooses to fork, which shares what is loaded, where no thread is running: only then is it safe."""
    threaded = threading.active_count() > 1 or not _UNSAFE_TO_FORK.isdisjoint(sys.modules)
    return "fork" if sys.platform == "linux" and not threaded else "spawn"


def _live(
    target: Callable[..., None],
    connection: Connection,
    inherited: list[Connection],
    arguments: tuple[Any, ...],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    target(connection, *arguments)
