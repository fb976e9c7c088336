"""The engine in a thread of its own; the event loop hands it requests and awaits what comes of them."""

import asyncio
import contextlib
import functools
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from groundup.core.errors import GroundupError
from groundup.core.log import logger
from groundup.inference.sequence import Delta, Request
from groundup.serve.refusal import Refusal
from groundup.serve.service_metrics import ServiceMetrics
from groundup.serve.text_engine import TextEngine

T = TypeVar("T")

_STOPPED = "the engine has stopped"


def in_passing_thread(work: Callable[[], T]) -> T:
    """Does what computes before the engine's thread begins.

    OpenMP keeps a team of workers for each thread that has computed. Those of several living threads are more
    than there are cores, and then the engine's would sleep at every barrier: half of the speed.
    """
    with ThreadPoolExecutor(1, "start") as pool:
        return pool.submit(work).result()


class Submission:
    """The texts of one HTTP request: an asynchronous iterator of (index of the text, what was added to it).

    It ends when all of them have ended; a text whose logits are not finite raises a ``Refusal``.
    """

    def __init__(self, requests: Sequence[Request], engine: "EngineThread") -> None:
        self.requests = requests
        self._engine = engine
        self.numbers: dict[int, int] = {}  # of the engine -> index; of the engine's thread only
        self.unfinished = set(range(len(requests)))
        self.arrived: asyncio.Queue[tuple[int, Delta] | Refusal] = asyncio.Queue()
        self.began = time.monotonic()
        self.last_at: dict[int, float] = {}

    def abort(self, indices: Collection[int]) -> None:
        """Ends texts; what is on its way of them may still arrive."""
        if running := self.unfinished.intersection(indices):
            self.unfinished -= running
            self._engine.forget(self, running)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        """Yields until every text has ended.

        Raises:
            Refusal: A text failed.
        """
        while self.unfinished or not self.arrived.empty():
            event = await self.arrived.get()
            if isinstance(event, Refusal):
                raise event
            if event[1].finished == "error":
                raise Refusal(500, "the model's logits are not finite")
            yield event


class EngineThread:
    """Runs ``TextEngine.step`` as long as there is work.

    The thread alone touches the engine's state, between two steps; commands reach it through a queue. All
    other methods are for the event loop.

    Args:
        engine: From now on for this thread only.
        metrics: Counts what comes of it.
        max_waiting: Texts that may wait beside those in work.
    """

    def __init__(self, engine: TextEngine, metrics: ServiceMetrics, *, max_waiting: int) -> None:
        self.engine = engine
        self.num_texts = 0
        self.failed: BaseException | None = None
        self._capacity = engine.max_batch_size + max_waiting
        self._metrics = metrics
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._submissions: dict[int, Submission] = {}  # by the engine's numbers; of the thread only
        self._open: set[Submission] = set()

    @contextlib.asynccontextmanager
    async def running(self, on_failure: Callable[[], None]) -> AsyncIterator[None]:
        """Runs the thread while entered; ``on_failure`` is called when the engine broke."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def run() -> None:
            try:
                self._work(loop)
            except BaseException as error:  # whatever it is, nobody else could end those who wait
                self.failed = error
                logger.exception("the engine failed")
                loop.call_soon_threadsafe(self._break, on_failure)
            finally:
                loop.call_soon_threadsafe(ended.set_result, None)

        threading.Thread(target=run, name="engine", daemon=True).start()
        try:
            yield
        finally:
            self._commands.put(None)
            await ended

    @contextlib.contextmanager
    def submit(self, requests: Sequence[Request]) -> Iterator[Submission]:
        """Queues texts; those that have not ended on leaving are aborted.

        Raises:
            Refusal: There is no room for so many.
        """
        if self.num_texts + len(requests) > self._capacity:
            raise Refusal(
                429,
                f"the service is busy: {self.num_texts} texts are in work or wait",
                fix="Try again later.",
            )
        if self.failed:
            raise Refusal(503, _STOPPED)
        submission = Submission(requests, self)
        self._open.add(submission)
        self._count(len(requests))
        self._commands.put(functools.partial(self._add, asyncio.get_running_loop(), submission))
        try:
            yield submission
        finally:
            self._open.discard(submission)
            self._metrics.aborted.inc(len(submission.unfinished))
            submission.abort(submission.unfinished)

    def forget(self, submission: Submission, indices: Collection[int]) -> None:
        """Frees what texts of a submission hold."""
        self._count(-len(indices))
        self._commands.put(functools.partial(self._abort, submission, indices))

    def _count(self, change: int) -> None:
        self.num_texts += change
        self._metrics.texts.set(self.num_texts)

    def _break(self, on_failure: Callable[[], None]) -> None:
        for submission in self._open:
            submission.arrived.put_nowait(Refusal(503, _STOPPED))
        on_failure()

    def _deliver(self, events: list[tuple[Submission, int, Delta]]) -> None:
        now = time.monotonic()
        for submission, index, delta in events:
            if index not in submission.unfinished:  # aborted since
                continue
            self._metrics.observe(delta, now - submission.began, now - submission.last_at.get(index, now))
            if delta.ids:
                submission.last_at[index] = now
            if delta.finished:
                submission.unfinished.discard(index)
                self._count(-1)
            submission.arrived.put_nowait((index, delta))

    # What follows runs in the thread.

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            while not self._submissions or not self._commands.empty():
                command = self._commands.get()
                if command is None:
                    return
                command()
            events = []
            for delta in self.engine.step():
                submission = self._submissions[delta.sequence]
                events.append((submission, submission.numbers[delta.sequence], delta))
                if delta.finished:
                    del self._submissions[delta.sequence]
            if events:
                loop.call_soon_threadsafe(self._deliver, events)

    def _add(self, loop: asyncio.AbstractEventLoop, submission: Submission) -> None:
        try:
            for index, request in enumerate(submission.requests):
                number = self.engine.add(request)
                submission.numbers[number] = index
                self._submissions[number] = submission
        except GroundupError as error:
            refusal = Refusal(422, error.what, fix=error.fix)
            loop.call_soon_threadsafe(submission.arrived.put_nowait, refusal)

    def _abort(self, submission: Submission, indices: Collection[int]) -> None:
        for number, index in submission.numbers.items():
            if index in indices and self._submissions.pop(number, None) is not None:
                self.engine.abort(number)
