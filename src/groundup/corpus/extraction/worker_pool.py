"""Processes in which pages are taken apart: a page that hangs, leaks or crashes costs that page alone."""

import contextlib
import multiprocessing
import queue
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from groundup.core.executor.local import Worker
from groundup.corpus.document import Document
from groundup.corpus.extraction.limits import ExtractionFailure, ExtractionLimits
from groundup.corpus.extraction.main_text import WebPage

Extract = Callable[[WebPage], Document]
"""Must be picklable."""

_GRACE_SECONDS = 30.0
_KIB = 1024


class ExtractionPool:
    """Worker processes behind a function that any thread may call.

    Args:
        extract: What is done to each page.
        workers: Processes; so many calls run at once, others wait.
        limits: For each page and worker.
        preload: Modules to import once, before workers are forked.
    """

    def __init__(
        self, extract: Extract, workers: int, limits: ExtractionLimits, *, preload: tuple[str, ...] = ()
    ) -> None:
        self._extract = extract
        self._limits = limits
        # Workers come from a server process without threads, which has the libraries loaded.
        self._context: Any = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__, *preload])
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._workers = workers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the workers, after the calls that run."""
        for _ in range(self._workers):
            if worker := self._idle.get():
                _end(worker)

    def __call__(self, page: WebPage) -> Document:
        """The page's document.

        Raises:
            ExtractionFailure: The page was too much for its worker, which is replaced.
        """
        worker = self._idle.get()
        try:
            if worker is None:
                worker = self._start()
            document, stays = self._ask(worker, page)
        except BaseException:
            if worker:
                _end(worker)
            self._idle.put(None)
            raise
        if not stays:
            _end(worker)
        self._idle.put(worker if stays else None)
        if isinstance(document, ExtractionFailure):
            raise document
        return document

    def _start(self) -> Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_work, args=(theirs, self._extract, self._limits), daemon=True, name="extraction"
        )
        process.start()
        theirs.close()
        return Worker(process, ours)

    def _ask(self, worker: Worker, page: WebPage) -> tuple[Document | ExtractionFailure, bool]:
        try:
            worker.connection.send(page)
            if not worker.connection.poll(self._limits.seconds + _GRACE_SECONDS):
                raise ExtractionFailure("extraction time limit", "it could not even be ended in time")
            answer: tuple[Document | ExtractionFailure, bool] = worker.connection.recv()
            return answer
        except (EOFError, BrokenPipeError, ConnectionResetError):
            worker.process.join(_GRACE_SECONDS)
            code = worker.process.exitcode
        if code == -signal.SIGALRM:
            raise ExtractionFailure("extraction time limit", f"over {self._limits.seconds:g} s")
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        raise ExtractionFailure("extraction crashed", name)


def _end(worker: Worker) -> None:
    worker.connection.close()
    worker.process.kill()
    worker.process.join()


def _work(connection: Connection, extract: Extract, limits: ExtractionLimits) -> None:
    """Takes a page and gives a document or a failure, until the other end closes or it is to be replaced."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends us
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if sys.platform == "linux":  # elsewhere the system does not hold to it
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = limits.memory_bytes if hard == resource.RLIM_INFINITY else min(limits.memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        for number in range(1, limits.pages_per_worker + 1):
            page = connection.recv()
            signal.setitimer(signal.ITIMER_REAL, limits.seconds)  # kills us, also where we hang in C
            answer = _extracted(page, extract)
            signal.setitimer(signal.ITIMER_REAL, 0)
            peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
            stays = number < limits.pages_per_worker and peak_bytes < limits.memory_bytes // 2
            connection.send((answer, stays and not isinstance(answer, ExtractionFailure)))


def _extracted(page: WebPage, extract: Extract) -> Document | ExtractionFailure:
    try:
        return extract(page)
    except MemoryError:
        return ExtractionFailure("extraction out of memory")
    except Exception as error:  # libraries raise what they like over broken markup
        return ExtractionFailure("extraction error", f"{type(error).__name__}: {error}"[:200])
