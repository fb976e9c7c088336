"""The watchdog: a thread in each rank that notices when it makes no progress, and ends a run that hangs.

It works under any launcher: ranks leave heartbeats and stalls in the folder of the launch, and each judges
from them who hangs. A rank that waits for others in a collective accuses only a rank that waits in none,
gives no sign of life, or is behind.
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
from groundup.launch.env import failures_dir, launcher_pipe, own_rank, rank_from_env
from groundup.launch.error_handler import record_failure, report_root_cause
from groundup.launch.errors import HANG, RankFailure, read_failures, write_failure
from groundup.launch.heartbeat import Heartbeat, HeartbeatWriter, read_heartbeat
from groundup.launch.stack_dump import StackDump, dump_stacks
from groundup.launch.straggler import Stall, Straggler, find_straggler, read_stalls, stall_path, write_stall

_TICK_SECONDS = 1.0
_NATIVE_SECONDS = 20.0  # without a tick, a stack is written in case that the others accuse this rank
_KNOWN_STEPS = 2  # so many lengths of steps make the step time known
_EXIT_CODE = 1


@config
class WatchdogConfig:
    """When a rank that makes no progress counts as hanging; then it is named, and the run ends.

    Attributes:
        seconds: Without progress, once the step time is known; 0 for no watchdog. One process alone has
            none.
        steps: So many median step times are always allowed.
        long_phase_seconds: For what may take long: starting, compiling, the first steps, saving, one batch
            of a validation.
    """

    seconds: NotNegativeFloat = 60.0
    steps: Positive = 10
    long_phase_seconds: NotNegativeFloat = 3600.0


@contextlib.contextmanager
def watchdog(settings: WatchdogConfig, heartbeat: HeartbeatWriter) -> Iterator[None]:
    """Watches this rank while entered, where somebody reads its heartbeat; else does nothing."""
    folder = failures_dir()
    if not folder:
        yield
        return
    watched = _Watchdog(settings, heartbeat, folder)
    heartbeat.record(0, "start", is_long=True)  # others may look from now on
    thread = threading.Thread(target=watched.run, name="groundup-watchdog", daemon=True)
    thread.start()
    try:
        yield
    except SystemExit as stop:
        if stop.code:
            record_failure(stop)  # at once: its end may take so long that the others' comes first
        raise
    finally:
        watched.stopped.set()
        thread.join()


class _Watchdog:
    """Counts its own ticks, so that time in which the process was suspended does not count."""

    def __init__(self, settings: WatchdogConfig, heartbeat: HeartbeatWriter, folder: Path) -> None:
        self.settings = settings
        self.heartbeat = heartbeat
        self.folder = folder
        self.stopped = threading.Event()
        rank = rank_from_env()
        self.rank = own_rank()
        self.world_size = rank.world_size if rank else 1
        self.flush = rank is not None and rank.world_size > rank.local_world_size
        self.device = rank.local_rank if rank else 0
        self.tick = min(_TICK_SECONDS, settings.seconds / 10) if settings.seconds else _TICK_SECONDS
        self._last = heartbeat.current
        self._last_step_at = 0.0
        self._idle_seconds = 0.0
        self._stalled_ticks = 0
        self._step_seconds: deque[float] = deque(maxlen=20)

    def run(self) -> None:
        """Watches until stopped; ends the process when a rank hangs."""
        path = _stack_path(self.folder, self.rank)
        try:
            with path.open("w") as stack_file:
                self._run(stack_file)
            path.unlink()
        except OSError as error:  # a full disk, or a file system that is gone: training may still go on
            logger.warning("the watchdog has ended: %s", error)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _run(self, stack_file: IO[str]) -> None:
        before = time.monotonic()
        while not self.stopped.wait(self.tick):
            now = time.monotonic()
            self.heartbeat.beat(flush=self.flush)
            if self.settings.seconds:
                self._look(now, min(now - before, 2 * self.tick))
                # Python does not run where native code keeps its lock: then this writes the stack.
                stack_file.truncate(0)
                after = min(_NATIVE_SECONDS, self.settings.seconds)
                faulthandler.dump_traceback_later(after, file=stack_file)
            before = now

    def _look(self, now: float, elapsed: float) -> None:
        current = self.heartbeat.current
        if current.num_records != self._last.num_records:
            self._note_progress(current, now)
            return
        self._idle_seconds += elapsed
        if self._idle_seconds <= self._allowed_seconds():
            return
        stacks = dump_stacks()
        if stacks.compiles and self._idle_seconds <= self.settings.long_phase_seconds:
            return
        if self._stalled_ticks == 0:
            write_stall(self.folder, self._stall(current, stacks))
        self._stalled_ticks += 1
        if self._stalled_ticks > 2:  # the others' watchdogs have had time to say the same
            self._judge()

    def _note_progress(self, current: Heartbeat, now: float) -> None:
        if current.step > self._last.step:
            if self._last_step_at:
                self._step_seconds.append((now - self._last_step_at) / (current.step - self._last.step))
            self._last_step_at = now
        self._last, self._idle_seconds = current, 0.0
        if self._stalled_ticks:
            stall_path(self.folder, self.rank).unlink(missing_ok=True)
            self._stalled_ticks = 0

    def _allowed_seconds(self) -> float:
        settings = self.settings
        if self._last.is_long or len(self._step_seconds) < _KNOWN_STEPS:
            return max(settings.long_phase_seconds, settings.seconds)
        return max(settings.seconds, settings.steps * statistics.median(self._step_seconds))

    def _stall(self, current: Heartbeat, stacks: StackDump) -> Stall:
        return Stall(
            rank=self.rank,
            host=socket.gethostname(),
            step=current.step,
            phase=current.phase,
            num_records=current.num_records,
            seconds=self._idle_seconds,
            waits_for=stacks.collective or ("the GPU" if _gpu_is_busy(self.device) else ""),
            at=stacks.at,
            stack=stacks.text,
        )

    def _judge(self) -> None:
        stalls = read_stalls(self.folder, self.world_size)
        heartbeats = {
            rank: heartbeat
            for rank in range(self.world_size)
            if (heartbeat := read_heartbeat(self.folder, rank))
        }
        found = [failure for failure in read_failures(self.folder, self.world_size) if failure.kind == HANG]
        if not found:
            straggler = find_straggler(
                stalls, heartbeats, host=socket.gethostname(), now=time.time(), world_size=self.world_size
            )
            found = self._accuse(straggler, stalls, heartbeats) if straggler else []
        if found:
            self._end(found)

    def _accuse(
        self, straggler: Straggler, stalls: dict[int, Stall], heartbeats: dict[int, Heartbeat]
    ) -> list[RankFailure]:
        """Writes the failure: each straggler its own; the first stalled rank those of silent ones."""
        if straggler.silent:
            ranks = straggler.ranks if self.rank == min(stalls) else ()
            failures = [self._failure_of_silent(heartbeats[rank], rank, straggler) for rank in ranks]
        else:
            ranks = (self.rank,) if self.rank in straggler.ranks else ()
            failures = [self._failure_of_stall(stalls[rank], straggler) for rank in ranks]
        for failure in failures:
            write_failure(self.folder, failure)
        return failures

    def _failure_of_stall(self, stall: Stall, straggler: Straggler) -> RankFailure:
        message = f"no progress for {stall.seconds:.0f} s at {stall.waits_for or stall.at}"
        return _hang(stall.rank, stall.step, stall.phase, message, straggler, stall.stack, stall.host)

    def _failure_of_silent(self, heartbeat: Heartbeat, rank: int, straggler: Straggler) -> RankFailure:
        message = (
            f"no sign of life for {time.time() - heartbeat.last_beat:.0f} s: its process is stopped, native"
            " code keeps Python from running in it, or its machine is gone"
        )
        path = _stack_path(self.folder, rank)
        stack = path.read_text() if path.is_file() else ""
        return _hang(rank, heartbeat.step, heartbeat.phase, message, straggler, stack, heartbeat.host)

    def _end(self, found: list[RankFailure]) -> None:
        """Ends the process without its main thread, which hangs and hears nothing."""
        if launcher_pipe() is None:
            report_root_cause(
                self.folder, min(found, key=lambda failure: failure.time), reporting_rank=self.rank
            )
        os._exit(_EXIT_CODE)  # without a flush, for which the hanging thread may hold the lock


def _hang(
    rank: int, step: int, phase: str, message: str, straggler: Straggler, stack: str, host: str
) -> RankFailure:
    return RankFailure(
        rank=rank,
        time=time.time(),
        step=step,
        phase=phase,
        kind=HANG,
        message=f"{message}; {straggler.reason}" if straggler.reason else message,
        traceback=stack,
        host=host,
    )


def _stack_path(folder: Path, rank: int) -> Path:
    """Returns the path of the faulthandler dump, written when a thread keeps Python's lock."""
    return folder / f"rank-{rank}.stack"


def _gpu_is_busy(device: int) -> bool:
    """Tells whether a rank's GPU still has work to do, for which it may wait for others' GPUs."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return not torch.cuda.default_stream(device).query()
