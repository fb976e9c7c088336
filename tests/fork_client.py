"""Stands for ``python`` or ``groundup``, by its name, and for a program that ``fork_server.py`` forks.

It lies beside the server's socket. Signals go through to the program, and its end is ours.
"""

# pathlib alone takes longer to import than all of this:
# ruff: noqa: PTH100, PTH109, PTH118, PTH120, PTH208

import marshal
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
WITHOUT_TORCH = ("corpus", "tokenizer", "tokens")  # these fork workers where they have not imported torch

folder, name = os.path.split(os.path.abspath(sys.argv[0]))
words = sys.argv[1:]
if name == "groundup":
    words = [os.path.join(os.path.dirname(sys.executable), name), *words]
    if words[1:2] and words[1] in WITHOUT_TORCH:
        os.execv(sys.executable, [sys.executable, *words])
request = {
    "words": words,
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "ignored": [int(number) for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN],
    "descriptors": [],
}
for entry in os.listdir("/proc/self/fd"):
    try:
        os.fstat(int(entry))
    except OSError:  # of the listing itself
        continue
    request["descriptors"].append(int(entry))
server = socket.socket(socket.AF_UNIX)
for number in SIGNALS:
    if int(number) not in request["ignored"]:
        signal.signal(number, lambda number, frame: server.send(bytes([number])))
server.connect(os.path.join(folder, "socket"))
content = marshal.dumps(request)
socket.send_fds(server, [len(content).to_bytes(4, "little")], request["descriptors"])
server.sendall(content)
answer = server.recv(4)
if not answer:
    sys.exit("the fork server has ended")
code = int.from_bytes(answer, "little", signed=True)
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
