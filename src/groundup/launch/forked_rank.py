"""Ranks as forks of the launcher: what it has imported, which takes seconds, they have from their start.

A fork begins as a new process of ``groundup`` would: with its own session, environment, arguments, standard
streams and signals, without the launcher's files, and it ends without what the launcher does at its end.
"""

import atexit
import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""One of them is there where a GPU's driver is."""

_STREAMS = (0, 1, 2)
_NUM_THREADS = "OMP_NUM_THREADS"


def is_safe_to_fork() -> bool:
    """Tells whether a fork of this process can do all that a new one can.

    Not on a machine with a GPU, whose drivers refuse to work in the fork of a process that has used them,
    nor where native code runs threads, since a fork has none of them and may wait for them for ever.
    """
    if sys.platform != "linux" or any(Path(path).exists() for path in GPU_FILES):
        return False
    return len(list(Path("/proc/self/task").iterdir())) == threading.active_count()


class ForkedRank:
    """A forked process, with what the launcher uses of ``subprocess.Popen``.

    Attributes:
        pid: Number of the process, and of its session.
        returncode: None until ``wait`` has returned.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.RLock()  # a signal's handler may come while its thread holds it

    def wait(self) -> int:
        """Returns the exit code when the process has ended: the negative number of a signal that ended it."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, to nobody where the process has ended."""
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, number)


def fork_rank(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: int | None,
    with_stdin: bool,
    kept: int,
    at_start: Callable[[], None] | None,
) -> ForkedRank:
    """Forks a process that runs ``groundup arguments``; returns when it has a session of its own.

    Args:
        arguments: Of the command.
        environment: The whole of it.
        output: Descriptor for what it writes; None for ours.
        with_stdin: Whether it reads our standard input.
        kept: Of our other descriptors, the one that it has too.
        at_start: What it does first.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or a fork writes it again
    streams = (
        None if with_stdin else os.open(os.devnull, os.O_RDONLY),
        output,
        output,
    )
    begun, at_begin = os.pipe()
    with _signals_wait() as mask:
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()  # Ctrl-C reaches the launcher alone
                if at_start:
                    at_start()
                _leave_signals(mask)
                _replace_descriptors(streams, kept)  # and by that says that it has begun
                _replace_settings(arguments, environment)
            except BaseException:  # nothing may go on as a second launcher
                os._exit(70)
            _run()
    os.close(at_begin)
    os.read(begun, 1)
    os.close(begun)
    if streams[0] is not None:
        os.close(streams[0])
    return ForkedRank(pid)


@contextlib.contextmanager
def _signals_wait() -> Iterator[set[signal.Signals | int]]:
    """Lets signals wait while entered, until a fork no longer has the launcher's handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_signals(mask: set[signal.Signals | int]) -> None:
    """Takes the launcher's handlers away, and drops signals that were sent to it and to its forks."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _replace_descriptors(streams: Sequence[int | None], kept: int) -> None:
    """Puts the streams in their places; the others lead nowhere, and keep the numbers that objects close."""
    for number, stream in zip(_STREAMS, streams, strict=True):
        if stream is not None:
            os.dup2(stream, number)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number not in (*_STREAMS, kept, nowhere):
            with contextlib.suppress(OSError):  # the listing's own, which is closed by now
                os.fstat(number)
                os.dup2(nowhere, number, inheritable=False)


def _replace_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Takes over environment and arguments, as far as libraries have not read them, and opens the streams."""
    for exit_function in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        exit_function.atexit = False  # the launcher's folders, which it removes itself
    torch = sys.modules.get("torch")
    if torch is not None and _NUM_THREADS not in os.environ:  # libraries read it when they load
        torch.set_num_threads(int(environment[_NUM_THREADS]))
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", 1, closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)  # type: ignore[misc]
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()


def _run() -> NoReturn:
    """Runs the command and ends as Python does, but for the modules: their removal would copy all memory."""
    code = 1
    try:
        importlib.import_module("groundup.__main__").main()
        code = 0
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            code = stop.code or 0
        else:
            print(stop.code, file=sys.stderr)  # noqa: T201  # as Python does
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it is closed
            stream.flush()
    os._exit(code & 0xFF)
