"""Ports, the loopback, this machine's name, and its clock."""

import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from groundup.plan.doctor.finding import Finding, Machine

_PORTS = {29_500: "where ranks meet by default (MASTER_PORT)", 5_000: "of `groundup serve`"}
_SECONDS = 5.0
_SKEW_SECONDS = 2.0


def ports(machine: Machine) -> Iterator[Finding]:
    """Whether the ports that are taken by default are free."""
    own = machine.environment.get("MASTER_PORT", "")
    wanted = dict(_PORTS) | ({int(own): "of MASTER_PORT"} if own.isdecimal() else {})
    if machine.environment.get("RANK"):
        wanted.pop(int(own) if own.isdecimal() else 29_500, None)  # the launcher has it
    taken = [number for number in wanted if not _is_free(number)]
    for number in taken:
        yield Finding(
            "ports",
            "warning",
            f"{number} is taken, {wanted[number]}",
            "Another job of this machine listens there.",
            "torchrun --master-port N (or MASTER_PORT), groundup serve --port N"
            f"; `ss -ltnp sport = :{number}` names who has it.",
        )
    if not taken:
        yield Finding("ports", "ok", f"{' and '.join(map(str, wanted))} are free")


def loopback(machine: Machine) -> Iterator[Finding]:
    """Whether processes of this machine reach each other, and whether it knows its own name."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_SECONDS)
        try:
            with socket.create_connection(server.getsockname(), timeout=_SECONDS) as client:
                connection, _ = server.accept()
                with connection:
                    client.sendall(b"ping")
                    connection.settimeout(_SECONDS)
                    answer = connection.recv(4)
        except OSError as error:
            why = "Ranks of one machine meet there."
            fix = "Allow it in the firewall, and bring it up: ip link set lo up"
            yield Finding("loopback", "problem", f"127.0.0.1 does not answer ({error})", why, fix)
            return
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        yield Finding(
            "loopback",
            "warning",
            f"127.0.0.1 answers ({answer.decode()}), and the name {name} is not known ({error})",
            "gloo looks for its address by that name.",
            f"echo '127.0.0.1 {name}' >> /etc/hosts, or: export GLOO_SOCKET_IFNAME=lo on one machine",
        )
        return
    yield Finding("loopback", "ok", f"127.0.0.1 answers; {name} is {address}")


def clock(machine: Machine) -> Iterator[Finding]:
    """Whether the clock is past our installation, never goes back, and agrees with the disk's."""
    now, monotonic = time.time(), [time.monotonic() for _ in range(1000)]
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    fix = "Set it: chronyc makestep, or timedatectl set-ntp true"
    written = Path(__file__).stat().st_mtime
    if now < written - 86_400:
        why = "It is before groundup was installed: certificates are refused, and logs are misleading."
        yield Finding("clock", "problem", found, why, fix)
        return
    if monotonic != sorted(monotonic):
        why = "Time limits and rates are measured by it."
        yield Finding(
            "clock", "problem", f"{found}; the monotonic clock goes back", why, "Update the kernel."
        )
        return
    folder = machine.run_dir.absolute()
    while not folder.is_dir():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"now")
            file.flush()
            behind = Path(f"/proc/self/fd/{file.fileno()}").stat().st_mtime - time.time()
    except OSError:  # the check of the run folder says so
        behind = 0.0
    if abs(behind) > _SKEW_SECONDS:
        why = "Files of a run bear the times of the file server, logs those of this machine."
        yield Finding("clock", "warning", f"{found}; the disk of {folder} is {behind:+.1f} s off", why, fix)
    else:
        yield Finding("clock", "ok", found)


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not taken by a connection that has ended
        try:
            one.bind(("", port))
        except OSError:
            return False
    return True
