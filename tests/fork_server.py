"""Runs Python programs as forks of a process that has imported what takes long, such as torch.

``fork_client.py`` connects to it, as ``python`` or ``groundup``. A program has the arguments, environment,
folder, descriptors and ignored signals of its client, and ends the client by its own exit code or signal.
Who kills a client kills its program.

Arguments: the descriptor of a listening socket, the path of the client, and the modules to import.
"""

import atexit
import contextlib
import faulthandler
import fcntl
import gc
import importlib
import marshal
import multiprocessing.spawn  # noqa: F401  # starts sys.executable as it is now
import os
import runpy
import select
import signal
import socket
import sys
import threading
from pathlib import Path

_POLL_SECONDS = 1.0  # how soon we end after our parent
_MAX_DESCRIPTORS = 64
_ABOVE = 512  # descriptors that no client has


def serve(listener: socket.socket) -> dict:
    """Forks for each client, as long as our parent lives; returns what it asks for, in the program alone."""
    parent = os.getppid()
    listener.settimeout(_POLL_SECONDS)
    while os.getppid() == parent:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        with contextlib.suppress(TimeoutError):
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return supervise(client)
            client.close()
    os._exit(0)


def supervise(client: socket.socket) -> dict:
    """Forks the program and stands between it and its client; returns in the program alone."""
    begin, descriptors, _, _ = socket.recv_fds(client, 4, _MAX_DESCRIPTORS)
    with client.makefile("rb") as stream:
        request = marshal.loads(stream.read(int.from_bytes(begin, "little")))
    program = os.fork()
    if program == 0:
        os.setsid()
        client.close()
        put_in_place(dict(zip(request["descriptors"], descriptors, strict=True)))
        return request
    for descriptor in descriptors:
        os.close(descriptor)
    end = os.pidfd_open(program)
    while end not in select.select([client, end], [], [])[0]:
        if not (numbers := client.recv(100)):
            os.killpg(program, signal.SIGKILL)
            os._exit(0)
        for number in numbers:
            os.kill(program, number)
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(OSError):  # the client has been killed
        client.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
    os._exit(0)


def put_in_place(descriptors: dict[int, int]) -> None:
    """Gives the descriptors (number of the client -> ours) the numbers that they have there."""
    copies = {number: fcntl.fcntl(ours, fcntl.F_DUPFD, _ABOVE) for number, ours in descriptors.items()}
    for ours in descriptors.values():
        os.close(ours)
    for number, copy in copies.items():
        os.dup2(copy, number)
        os.close(copy)


def become(request: dict) -> None:
    """Takes over what a new process has from its parent."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    # By lines, as under PYTHONUNBUFFERED, terminal or not.
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if "PYTHONFAULTHANDLER" in os.environ:
        faulthandler.enable()


def run(words: list[str]) -> None:
    """Runs what the words after ``python`` name."""
    match words:
        case ["-u" | "-B", *words]:
            run(words)
        case ["-m", module, *_]:
            sys.argv, sys.path[0] = words[1:], str(Path.cwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            sys.argv, sys.path[0] = ["-c", *rest], ""
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case [script, *_]:
            sys.argv, sys.path[0] = words, str(Path(script).parent)
            runpy.run_path(script, run_name="__main__")


def run_to_the_end(words: list[str]) -> None:
    """Runs the words and ends as Python does, but for the modules, whose removal would copy all memory."""
    code = 1
    try:
        run(words)
        code = 0
    except SystemExit as stop:
        if isinstance(stop.code, int) or stop.code is None:
            code = stop.code or 0
        else:
            print(stop.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it is closed
            stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    descriptor, sys.executable, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # no fork collects, nor copies, what is imported
    request = serve(socket.socket(fileno=int(descriptor)))
    become(request)
    run_to_the_end(request["words"])
