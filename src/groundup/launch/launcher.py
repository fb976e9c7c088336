"""Starts the ranks of a run on this machine, says which failed first, and starts them again on request."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from groundup.core.log import logger
from groundup.core.processes import number_of_workers
from groundup.launch import errors
from groundup.launch.env import Rank, launched, nodes_of_job
from groundup.launch.errors import Failure
from groundup.launch.heartbeat import FOLDER_VARIABLE, LAUNCHER_VARIABLE
from groundup.launch.processes import death_wish, free_port, signals_to
from groundup.launch.rank_log import Warnings
from groundup.launch.restart_policy import Restarts
from groundup.launch.root_cause import count_oom_kills, describe_failure, evidence

__all__ = ["Rank", "launched", "run_ranks"]

_GROUNDUP = (sys.executable, "-m", "groundup")
_LOOK_SECONDS = 0.2
# A failure ends all ranks within their sum, 8.5 s at most.
_SETTLE_SECONDS = 0.5  # after a failure: for what failed a moment before it and was noticed later
_PATIENCE_SECONDS = 3.0  # after the loss of a peer: for the peer's own failure
_TERM_SECONDS = 5.0  # between asking a rank to end and killing it
_STOP_SECONDS = 30.0  # when asked to stop: between the first rank's end and that of the last
_OUTPUT_BYTES = 16_384


def run_ranks(
    world_size: int,
    arguments: Sequence[str],
    *,
    command: Sequence[str] = _GROUNDUP,
    folder: Path | None = None,
    max_restarts: int = 0,
    newest_step: Callable[[], int] = lambda: 0,
) -> int:
    """Runs ``command arguments`` as several ranks on this machine, until all have ended.

    Rank 0 writes to this terminal, the others to ``rank-N.log``, but for their warnings. When one fails, the
    others end within 10 seconds, and the last words on stderr are the failure that came first; then all
    start again where that may help. SIGINT, SIGTERM and SIGHUP are passed on once, so that the ranks save
    and end, and nothing starts again; the second kills them. On Linux no rank outlives this process. Call
    it from the main thread.

    Args:
        world_size: Number of ranks.
        arguments: Of each.
        command: What is run.
        folder: For the ranks' output and failures, kept after a failure; a temporary one by default.
        max_restarts: How often the ranks are started again after failures.
        newest_step: Tells the step that they continue from then; 0 for the beginning.

    Returns:
        0 where all ranks ended well; that of the last attempt's first failure (128 + number of a signal); or
        128 + number of the signal that stopped them.
    """
    if nodes_of_job() > 1:
        logger.warning(
            "this Slurm job has %d nodes, and all %d ranks start on this one: `srun %s` would use all",
            nodes_of_job(),
            world_size,
            " ".join(("groundup", *arguments)),
        )
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="groundup-ranks-"))
        folder.mkdir(parents=True, exist_ok=True)
        stack.callback(_remove_when_empty, folder)
        errors.clear(folder, attempts=True)
        restarts = Restarts(max_restarts, newest_step)
        asked: list[int] = []  # the signals that we were sent
        ranks = _Ranks(folder, asked)

        def ask(number: int) -> None:
            asked.append(number)
            ranks.ask()  # those of the present attempt

        stack.enter_context(signals_to(ask))
        stack.callback(lambda: ranks.kill())  # whatever goes wrong here
        while True:
            ranks.start(world_size, (*command, *arguments))
            ranks.wait()
            code, failure = ranks.end()
            if failure is None:
                errors.clear(folder)
                return code
            decision = restarts.decide(failure, oom_kills=ranks.oom_kills)
            again = decision.again and not asked
            if decision.words and not decision.again:
                logger.warning("%s", decision.words)
            ranks.report(failure)
            if not again:
                return code
            logger.warning("%s", decision.words)
            errors.put_away(folder, restarts.done)
            ranks = _Ranks(folder, asked)


class _Ranks:
    """The processes, what is known of their ends, and what is being done about it."""

    def __init__(self, folder: Path, asked: Sequence[int]) -> None:
        self.folder = folder
        self._asked = asked
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ends: dict[int, tuple[int, float]] = {}  # rank -> exit code, Unix time
        self._ending_since: float | None = None  # Unix time at which we told the ranks to end
        self._first_seen: dict[str, float] = {}
        self._seen: queue.Queue[tuple[int, int, float]] = queue.Queue()
        self._oom_kills_before = count_oom_kills()
        self._warnings = Warnings()

    @property
    def asked(self) -> int | None:
        """The signal by which the ranks were asked to end."""
        return (signal.SIGINT if self._asked[0] == signal.SIGINT else signal.SIGTERM) if self._asked else None

    @property
    def oom_kills(self) -> int:
        """Processes that the kernel has killed since the start for want of memory."""
        return count_oom_kills() - self._oom_kills_before

    def start(self, world_size: int, command: Sequence[str]) -> None:
        threads = max(1, number_of_workers(None) // world_size)
        port = free_port()
        die_with_us = death_wish()
        for number in range(world_size):
            rank = Rank(number, number, world_size, world_size, "127.0.0.1", port)
            environment = {
                "OMP_NUM_THREADS": str(threads),
                "PYTHONFAULTHANDLER": "1",  # a crash in native code leaves a stack
                "PYTHONUNBUFFERED": "1",  # a killed rank leaves its last words
                **os.environ,
                **rank.environment(),
                FOLDER_VARIABLE: str(self.folder.absolute()),
                LAUNCHER_VARIABLE: str(self._warnings.descriptor),
            }
            with contextlib.ExitStack() as stack:
                out = stack.enter_context(self._log(number).open("wb")) if number else None
                process = subprocess.Popen(  # noqa: S603  # the user's own command
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=(self._warnings.descriptor,),
                    start_new_session=True,  # Ctrl-C reaches us alone
                    preexec_fn=die_with_us,  # only the folder lock's thread runs, which holds nothing
                )
            self.processes.append(process)
            if self.asked is not None:  # meanwhile
                process.send_signal(self.asked)
        self._warnings.listen()
        for number, process in enumerate(self.processes):
            threading.Thread(target=self._watch, args=(number, process), daemon=True).start()

    def wait(self) -> None:
        """Until all have ended; those that are left when one has failed are ended."""
        while len(self.ends) < len(self.processes):
            with contextlib.suppress(queue.Empty):
                number, code, seen = self._seen.get(timeout=_LOOK_SECONDS)
                self.ends[number] = code, seen
            if self._ending_since is None and self._must_end():
                self._ending_since = time.time()
                self._signal_all(signal.SIGTERM)
            elif self._ending_since is not None and time.time() - self._ending_since > _TERM_SECONDS:
                self.kill()

    def ask(self) -> None:
        """Passes the first signal on to all ranks; after the second, kills them."""
        if len(self._asked) > 1:
            self._ending_since = self._ending_since or time.time()
            self.kill()
        elif self.asked is not None:
            self._signal_all(self.asked)

    def kill(self) -> None:
        """Ends what is left, with all processes that it started."""
        for process in self.processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

    def end(self) -> tuple[int, Failure | None]:
        """When all have ended: the exit code of it all, and what failed first, if anything."""
        self._warnings.close()
        failure = self._first_failure()
        codes = [code for code, _ in self.ends.values() if code]
        if failure is not None:
            code = self.ends[failure.rank][0]
            return 128 - code if code < 0 else code or 1, failure
        if self.asked is not None and codes:
            return 128 + self.asked, None
        return max(abs(code) for code in codes) if codes else 0, None

    def report(self, failure: Failure) -> None:
        """Says what failed first."""
        log = self._log(failure.rank) if failure.rank else None
        sys.stderr.write(evidence(failure, self._output(failure.rank)))
        sys.stderr.write(describe_failure(failure, log=log, oom_kills=self.oom_kills) + "\n")
        sys.stderr.flush()

    def _must_end(self) -> bool:
        """Whether a rank has failed, and what may have caused it has had time to show."""
        now = time.monotonic()
        failure = self._first_failure()
        if failure:
            lost = failure.follows_another
            since = self._first_seen.setdefault("loss" if lost else "failure", now)
            return now - since >= (_PATIENCE_SECONDS if lost else _SETTLE_SECONDS)
        codes = [code for code, _ in self.ends.values() if code]
        if codes:  # asked to stop, and not all have followed
            at_once = any(self._was_killed(number) for number in self.ends)
            since = self._first_seen.setdefault("stop", now)
            return now - since >= (_PATIENCE_SECONDS if at_once else _STOP_SECONDS)
        return False

    def _was_killed(self, number: int) -> bool:
        """Whether a rank ended by the signal that it was asked to stop by, without saving."""
        code, _ = self.ends[number]
        died = self.asked is not None and code in (-self.asked, 128 + self.asked)
        return died and errors.read_record(self.folder, number) is None  # of one that saved there is one

    def _first_failure(self) -> Failure | None:
        """Of what happened before we began to end the ranks."""
        found = []
        for number in range(len(self.processes)):
            failure = errors.read_record(self.folder, number) or self._failure_of_end(number)
            if failure and failure.time <= (self._ending_since or failure.time):
                found.append(failure)
        first = errors.first_failure(found)
        if first and first.follows_another:
            if self.asked is not None:  # ranks that stop at once are lost to the others
                return None
            left = [(seen, number) for number, (code, seen) in self.ends.items() if code == 0]
            if left and min(left)[0] < first.time + _SETTLE_SECONDS:
                seen, number = min(left)
                return errors.failure_of_exit(self.folder, number, 0, seen, "")
        return first

    def _failure_of_end(self, number: int) -> Failure | None:
        code, seen = self.ends.get(number, (0, 0.0))
        if code == 0:
            return None
        if self.asked is not None and code in (-self.asked, 128 + self.asked):
            return None
        return errors.failure_of_exit(self.folder, number, code, seen, self._output(number))

    def _output(self, number: int) -> str:
        """The end of what a rank wrote; empty for rank 0, which writes to the terminal."""
        if number == 0:
            return ""
        with self._log(number).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
            return file.read().decode(errors="replace")

    def _log(self, number: int) -> Path:
        return self.folder / f"rank-{number}.log"

    def _signal_all(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)  # nothing where it has ended

    def _watch(self, number: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        self._seen.put((number, code, time.time()))


def _remove_when_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
