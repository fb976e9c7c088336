"""A rank without torch: it loses its peer's connection when the culprit fails in one way or another."""

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from pathlib import Path

from groundup.core import log
from groundup.core.errors import DataError, GroundupError
from groundup.launch.error_handler import record_failure
from groundup.launch.heartbeat import HeartbeatWriter
from groundup.launch.rank_log import prefix_log_lines

culprit, how, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
rank, world_size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))


class Interrupted(GroundupError):
    """As the training loop's."""


def culprits_life():
    with socket.create_server(("127.0.0.1", port)) as listener:
        peers = [listener.accept()[0] for _ in range(world_size - 1)]
    match how:
        case "data":
            raise DataError("document 7 is empty", where="corpus.jsonl:8", fix="Drop it.")
        case "bug":
            raise ValueError("a bug\nof two lines")
        case "gpu":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        case "print":
            sys.stderr.write("a library gave up\n")
            os._exit(3)
        case "exit":
            sys.exit(4)
        case "finish":
            os._exit(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "deaf":  # the others do not hear of it, nor of SIGTERM
            raise DataError("a file is gone")
        case "late":  # as `with` blocks close their connections before the exception is seen
            for peer in peers:
                peer.close()
            time.sleep(1)
            raise DataError("the cause, told late")
        case "lazy":  # its record is there, but its end takes for ever
            with contextlib.ExitStack() as stack:
                stack.callback(time.sleep, 600)
                stack.callback(record_failure, DataError("it hangs in its own end"))
                raise SystemExit(1)


def others_life():
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection = socket.socket()
    while connection.connect_ex(("127.0.0.1", port)):
        connection.close()
        connection = socket.socket()
        time.sleep(0.01)
    with contextlib.suppress(ConnectionResetError):
        connection.recv(1)
    if how == "deaf":
        time.sleep(600)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242")


def life_until_asked():
    def note(number, frame):
        name = signal.Signals(number).name
        (folder / f"{rank}.told").write_text(name + "\n")
        if how == "obey":
            raise Interrupted("stopped after step 5, which is saved", fix="The same command continues.")

    signal.signal(signal.SIGINT, note)
    signal.signal(signal.SIGTERM, note)
    with (folder / f"{rank}.alive").open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)  # let go of at the end, whatever it is
        (folder / f"{rank}.ready").touch()
        while True:
            time.sleep(1)


if how == "warn":
    log.set_up()
    prefix_log_lines(rank)
    log.logger.warning("a disk is slow")
    log.logger.info("as always")
    sys.exit()
HeartbeatWriter.from_env().record(812, "backward")
try:
    if how in ("obey", "ignore"):
        life_until_asked()
    elif rank == culprit:
        culprits_life()
    else:
        others_life()
except Exception as error:
    record_failure(error)
    raise
