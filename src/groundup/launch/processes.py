"""What starting ranks needs of the system: signals, a free port, children that die with their parent."""

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def signals_to(ask: Callable[[int], None]) -> Iterator[None]:
    """While entered, SIGINT, SIGTERM and SIGHUP are told to ``ask``, their number with it."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        ask(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] == signal.SIG_IGN:  # nohup
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def death_wish() -> Callable[[], None] | None:
    """What a new process does to be killed when we end, however we end; only Linux can."""
    if sys.platform != "linux":
        return None
    set_option = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def wish() -> None:
        set_option(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # too late
            os._exit(1)

    return wish


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
