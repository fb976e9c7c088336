"""The processes of one attempt to run all ranks: their start, their ends, and which of them failed first."""

import contextlib
import ctypes
import gc
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from groundup.core.executor.local import number_of_workers
from groundup.launch import errors
from groundup.launch.env import FAILURES_DIR, LAUNCHER_PIPE, RankInfo
from groundup.launch.error_report import count_oom_kills, describe_failure, failure_excerpt
from groundup.launch.errors import RankFailure
from groundup.launch.forked_rank import ForkedRank, fork_rank, is_safe_to_fork
from groundup.launch.rank_log import WarningRelay

_GROUNDUP = (sys.executable, "-m", "groundup")
_POLL_SECONDS = 0.2
# A failure ends all ranks within their sum, 8.5 s at most.
_SETTLE_SECONDS = 0.5  # after a failure: for what failed a moment before it and was noticed later
_PATIENCE_SECONDS = 3.0  # after the loss of a peer: for the peer's own failure
_TERM_SECONDS = 5.0  # between asking a rank to end and killing it
_STOP_SECONDS = 30.0  # when asked to stop: between the first rank's end and that of the last
_OUTPUT_BYTES = 16_384
_PR_SET_PDEATHSIG = 1


class RankProcesses:
    """Starts, stops and ends the processes of all ranks, and finds the root cause of their ends.

    Args:
        folder: For their output, heartbeats and failures.
        received: The signals that the launcher has received; it grows.
    """

    def __init__(self, folder: Path, received: Sequence[int]) -> None:
        self.folder = folder
        self._received = received
        self._processes: list[subprocess.Popen[bytes] | ForkedRank] = []
        self._ends: dict[int, tuple[int, float]] = {}  # rank -> exit code, Unix time
        self._ending_since: float | None = None  # Unix time at which we told the ranks to end
        self._first_seen: dict[str, float] = {}
        self._ended: queue.Queue[tuple[int, int, float]] = queue.Queue()
        self._oom_kills_before = count_oom_kills()
        self._warnings = WarningRelay()

    @property
    def stop_signal(self) -> int | None:
        """The signal by which the ranks were asked to stop."""
        if not self._received:
            return None
        return signal.SIGINT if self._received[0] == signal.SIGINT else signal.SIGTERM

    @property
    def oom_kills(self) -> int:
        """Processes that the kernel has killed since the start for want of memory."""
        return count_oom_kills() - self._oom_kills_before

    def start(
        self,
        world_size: int,
        arguments: Sequence[str],
        *,
        command: Sequence[str] = (),
        with_stdin: bool = False,
    ) -> None:
        """Starts all ranks; the first may read our standard input.

        Args:
            world_size: Number of ranks.
            arguments: Of each.
            command: What new processes run; ``groundup`` where empty, and in forks of this one if it can.
            with_stdin: Whether the first rank reads our standard input.
        """
        threads = max(1, number_of_workers(None) // world_size)
        port = _free_port()
        set_pdeathsig = _pdeathsig_setter()
        forks = not command and is_safe_to_fork()
        words = [*(command or _GROUNDUP), *arguments]
        if forks:
            gc.freeze()  # so that no fork collects, and thereby copies, what it shares with the others
        for number in range(world_size):
            rank = RankInfo(number, number, world_size, world_size, "127.0.0.1", port)
            environment = {
                "OMP_NUM_THREADS": str(threads),
                "PYTHONFAULTHANDLER": "1",  # a crash in native code leaves a stack
                "PYTHONUNBUFFERED": "1",  # a killed rank leaves its last words
                **os.environ,
                **rank.environment(),
                FAILURES_DIR: str(self.folder.absolute()),
                LAUNCHER_PIPE: str(self._warnings.descriptor),
            }
            reads = with_stdin and not number
            process: subprocess.Popen[bytes] | ForkedRank
            with contextlib.ExitStack() as stack:
                out = stack.enter_context(self._log(number).open("wb")) if number else None
                if forks:
                    process = fork_rank(
                        arguments,
                        environment,
                        output=out.fileno() if out else None,
                        with_stdin=reads,
                        kept=self._warnings.descriptor,
                        at_start=set_pdeathsig,
                    )
                else:
                    process = subprocess.Popen(  # noqa: S603  # the user's own command
                        words,
                        env=environment,
                        stdin=None if reads else subprocess.DEVNULL,
                        stdout=out,
                        stderr=out,
                        pass_fds=(self._warnings.descriptor,),
                        start_new_session=True,  # Ctrl-C reaches us alone
                        preexec_fn=set_pdeathsig,  # only the folder lock's thread runs, which holds nothing
                    )
            self._processes.append(process)
            if self.stop_signal is not None:  # meanwhile
                process.send_signal(self.stop_signal)
        self._warnings.listen()
        for number, process in enumerate(self._processes):
            threading.Thread(target=self._watch, args=(number, process), daemon=True).start()

    def wait(self) -> None:
        """Waits until all have ended; ends those that are left when one has failed."""
        while len(self._ends) < len(self._processes):
            with contextlib.suppress(queue.Empty):
                number, code, seen = self._ended.get(timeout=_POLL_SECONDS)
                self._ends[number] = code, seen
            if self._ending_since is None and self._must_end():
                self._ending_since = time.time()
                self._signal_all(signal.SIGTERM)
            elif self._ending_since is not None and time.time() - self._ending_since > _TERM_SECONDS:
                self.kill()

    def stop(self) -> None:
        """Passes the first signal that was received on to all ranks; after the second, kills them."""
        if len(self._received) > 1:
            self._ending_since = self._ending_since or time.time()
            self.kill()
        elif self.stop_signal is not None:
            self._signal_all(self.stop_signal)

    def kill(self) -> None:
        """Kills what is left, with all processes that it started."""
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

    def outcome(self) -> tuple[int, RankFailure | None]:
        """Returns, when all have ended, the exit code of it all and the root cause, if any failed."""
        self._warnings.close()
        cause = self._root_cause()
        codes = [code for code, _ in self._ends.values() if code]
        if cause is not None:
            code = self._ends[cause.rank][0]
            return 128 - code if code < 0 else code or 1, cause
        if self.stop_signal is not None and codes:
            return 128 + self.stop_signal, None
        return max(abs(code) for code in codes) if codes else 0, None

    def report(self, cause: RankFailure) -> None:
        """Prints the root cause."""
        log = self._log(cause.rank) if cause.rank else None
        sys.stderr.write(failure_excerpt(cause, self._output(cause.rank)))
        sys.stderr.write(describe_failure(cause, log=log, oom_kills=self.oom_kills) + "\n")
        sys.stderr.flush()

    def _must_end(self) -> bool:
        """Tells whether a rank has failed, and what may have caused it has had time to show."""
        now = time.monotonic()
        cause = self._root_cause()
        if cause:
            since = self._first_seen.setdefault("loss" if cause.is_peer_loss else "failure", now)
            return now - since >= (_PATIENCE_SECONDS if cause.is_peer_loss else _SETTLE_SECONDS)
        codes = [code for code, _ in self._ends.values() if code]
        if codes:  # asked to stop, and not all have followed
            at_once = any(self._was_killed(number) for number in self._ends)
            since = self._first_seen.setdefault("stop", now)
            return now - since >= (_PATIENCE_SECONDS if at_once else _STOP_SECONDS)
        return False

    def _was_killed(self, number: int) -> bool:
        """Tells whether a rank ended by the signal that it was asked to stop by, without saving."""
        code, _ = self._ends[number]
        return self._is_of_stop_signal(code) and errors.read_failure(self.folder, number) is None

    def _root_cause(self) -> RankFailure | None:
        """Returns the root cause among failures that happened before we began to end the ranks."""
        found = []
        for number in range(len(self._processes)):
            failure = errors.read_failure(self.folder, number) or self._failure_of_end(number)
            if failure and failure.time <= (self._ending_since or failure.time):
                found.append(failure)
        cause = errors.root_cause(found)
        if cause and cause.is_peer_loss:
            if self.stop_signal is not None:  # ranks that stop at once are lost to the others
                return None
            left = [(seen, number) for number, (code, seen) in self._ends.items() if code == 0]
            if left and min(left)[0] < cause.time + _SETTLE_SECONDS:
                seen, number = min(left)
                return errors.failure_from_exit(self.folder, number, 0, seen, "")
        return cause

    def _failure_of_end(self, number: int) -> RankFailure | None:
        code, seen = self._ends.get(number, (0, 0.0))
        if code == 0 or self._is_of_stop_signal(code):
            return None
        return errors.failure_from_exit(self.folder, number, code, seen, self._output(number))

    def _is_of_stop_signal(self, code: int) -> bool:
        return self.stop_signal is not None and code in (-self.stop_signal, 128 + self.stop_signal)

    def _output(self, number: int) -> str:
        """Returns the end of what a rank wrote; empty for rank 0, which writes to the terminal."""
        if number == 0:
            return ""
        with self._log(number).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
            return file.read().decode(errors="replace")

    def _log(self, number: int) -> Path:
        return self.folder / f"rank-{number}.log"

    def _signal_all(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)  # nothing where it has ended

    def _watch(self, number: int, process: subprocess.Popen[bytes] | ForkedRank) -> None:
        code = process.wait()
        self._ended.put((number, code, time.time()))


def _pdeathsig_setter() -> Callable[[], None] | None:
    """Returns what a new process calls to be killed when we end, however we end; only Linux can."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def set_pdeathsig() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # too late
            os._exit(1)

    return set_pdeathsig


def _free_port() -> int:
    """Returns a port of this machine that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
