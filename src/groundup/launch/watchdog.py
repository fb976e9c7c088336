"""A rank's watch over itself: a thread that sees whether it gets on, and says so when it does not.

It works under any launcher: ranks leave signs of life and stalls in the folder of the launch, and each
judges from them who hangs. A rank that waits for others in a collective accuses nobody but a rank that
waits for none, gives no sign of life, or is behind.
"""

import contextlib
import faulthandler
import os
import socket
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from groundup.core.config import config
from groundup.core.config_class import NotNegativeFloat, Positive
from groundup.core.log import logger
from groundup.launch.env import launched
from groundup.launch.error_handler import record_failure, say_last_words
from groundup.launch.errors import HANG, Failure, read_records, stack_path, write_record
from groundup.launch.heartbeat import (
    FOLDER_VARIABLE,
    LAUNCHER_VARIABLE,
    Place,
    beat,
    here,
    own_rank,
    progress_note,
    read_place,
)
from groundup.launch.stack_dump import Standing, standing
from groundup.launch.straggler import Stall, Verdict, judge, read_stalls, stall_path, write_stall

_TICK_SECONDS = 1.0
_NATIVE_SECONDS = 20.0  # without a tick, a stack is written in case that the others accuse this rank
_KNOWN_STEPS = 2  # so many lengths of steps make the step time known
_EXIT_CODE = 1


@config
class HangConfig:
    """When a rank that does not get on counts as hanging; then it is named, and the run ends.

    Attributes:
        seconds: Without progress, once the step time is known; 0 for no watch. Of one process alone there
            is none.
        steps: So many median step times are allowed all the same.
        long_phase_seconds: For what may take long: starting, compiling, the first steps, saving, one batch
            of a validation.
    """

    seconds: NotNegativeFloat = 60.0
    steps: Positive = 10
    long_phase_seconds: NotNegativeFloat = 3600.0


@contextlib.contextmanager
def hang_watch(settings: HangConfig) -> Iterator[None]:
    """Watches this rank while entered, where there is somebody to tell; else does nothing."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        yield
        return
    watch = _Watch(settings, Path(folder))
    progress_note(0, "start", is_long=True)  # others may look from now on
    thread = threading.Thread(target=watch.run, name="groundup-hang-watch", daemon=True)
    thread.start()
    try:
        yield
    except SystemExit as stop:
        if stop.code:
            record_failure(stop)  # at once: its end may take so long that the others' comes first
        raise
    finally:
        watch.stopped.set()
        thread.join()


class _Watch:
    """Counts its own ticks, so that time in which the process was suspended does not count."""

    def __init__(self, settings: HangConfig, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.stopped = threading.Event()
        rank = launched()
        self.rank = own_rank()
        self.world_size = rank.world_size if rank else 1
        self.flush = rank is not None and rank.world_size > rank.local_world_size
        self.device = rank.local_rank if rank else 0
        self.tick = min(_TICK_SECONDS, settings.seconds / 10) if settings.seconds else _TICK_SECONDS
        self._last = here()
        self._last_step_at = 0.0
        self._idle_seconds = 0.0
        self._stalled_ticks = 0
        self._step_seconds: deque[float] = deque(maxlen=20)

    def run(self) -> None:
        """Until stopped; ends the process when a rank hangs."""
        path = stack_path(self.folder, self.rank)
        try:
            with path.open("w") as stack_file:
                self._run(stack_file)
            path.unlink()
        except OSError as error:  # a full disk, or a file system that is gone: training may still go on
            logger.warning("the watch for hangs has ended: %s", error)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _run(self, stack_file: IO[str]) -> None:
        before = time.monotonic()
        while not self.stopped.wait(self.tick):
            now = time.monotonic()
            beat(flush=self.flush)
            if self.settings.seconds:
                self._look(now, min(now - before, 2 * self.tick))
                # Python does not run where native code keeps its lock: then this writes the stack.
                stack_file.truncate(0)
                after = min(_NATIVE_SECONDS, self.settings.seconds)
                faulthandler.dump_traceback_later(after, file=stack_file)
            before = now

    def _look(self, now: float, elapsed: float) -> None:
        place = here()
        if place.notes != self._last.notes:
            if place.step > self._last.step:
                if self._last_step_at:
                    self._step_seconds.append((now - self._last_step_at) / (place.step - self._last.step))
                self._last_step_at = now
            self._last, self._idle_seconds = place, 0.0
            if self._stalled_ticks:
                stall_path(self.folder, self.rank).unlink(missing_ok=True)
                self._stalled_ticks = 0
            return
        self._idle_seconds += elapsed
        if self._idle_seconds <= self._allowed_seconds():
            return
        now_at = standing()
        if now_at.compiles and self._idle_seconds <= self.settings.long_phase_seconds:
            return
        if self._stalled_ticks == 0:
            write_stall(self.folder, self._stall(place, now_at))
        self._stalled_ticks += 1
        if self._stalled_ticks > 2:  # the others' watches have had time to say the same
            self._judge()

    def _allowed_seconds(self) -> float:
        settings = self.settings
        if self._last.is_long or len(self._step_seconds) < _KNOWN_STEPS:
            return max(settings.long_phase_seconds, settings.seconds)
        return max(settings.seconds, settings.steps * statistics.median(self._step_seconds))

    def _stall(self, place: Place, at: Standing) -> Stall:
        return Stall(
            rank=self.rank,
            host=socket.gethostname(),
            step=place.step,
            phase=place.phase,
            notes=place.notes,
            seconds=self._idle_seconds,
            waits_for=at.waits_in or ("the GPU" if _gpu_is_busy(self.device) else ""),
            at=at.at,
            stack=at.text,
        )

    def _judge(self) -> None:
        stalls = read_stalls(self.folder, self.world_size)
        places = {rank: place for rank in range(self.world_size) if (place := read_place(self.folder, rank))}
        now = time.time()
        found = [record for record in read_records(self.folder, self.world_size) if record.kind == HANG]
        if not found:
            verdict = judge(stalls, places, host=socket.gethostname(), now=now, world_size=self.world_size)
            if verdict is None:
                return
            found = self._accuse(verdict, stalls, places)
        if found:
            self._end(found)

    def _accuse(self, verdict: Verdict, stalls: dict[int, Stall], places: dict[int, Place]) -> list[Failure]:
        """Each culprit speaks for itself; for those that cannot, the first of the others does."""
        if not verdict.silent:
            if self.rank not in verdict.culprits:
                return []
            stall = stalls[self.rank]
            message = f"no progress for {stall.seconds:.0f} s at {stall.waits_for or stall.at}"
            failures = [self._failure(self.rank, stall.step, stall.phase, message, verdict, stall.stack)]
        elif self.rank == min(stalls):
            failures = []
            for rank in verdict.culprits:
                place = places[rank]
                message = (
                    f"no sign of life for {time.time() - place.beat:.0f} s: its process is stopped, native"
                    " code keeps Python from running in it, or its machine is gone"
                )
                stack = stack_path(self.folder, rank)
                text = stack.read_text() if stack.is_file() else ""
                failures.append(self._failure(rank, place.step, place.phase, message, verdict, text))
        else:
            return []
        for failure in failures:
            write_record(self.folder, failure)
        return failures

    def _failure(
        self, rank: int, step: int, phase: str, message: str, verdict: Verdict, stack: str
    ) -> Failure:
        place = read_place(self.folder, rank)
        return Failure(
            rank=rank,
            time=time.time(),
            step=step,
            phase=phase,
            kind=HANG,
            message=f"{message}; {verdict.reason}" if verdict.reason else message,
            traceback=stack,
            host=place.host if place else socket.gethostname(),
        )

    def _end(self, found: list[Failure]) -> None:
        """A thread that hangs hears nothing: the process ends without it."""
        if LAUNCHER_VARIABLE not in os.environ:
            say_last_words(self.folder, min(found, key=lambda failure: failure.time), own_rank=self.rank)
        os._exit(_EXIT_CODE)  # without a flush, for which the hanging thread may hold the lock


def _gpu_is_busy(device: int) -> bool:
    """Whether a rank's GPU still has work to do, for which it may wait for others' GPUs."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return not torch.cuda.default_stream(device).query()
