"""Limits of the system on files, processes and pinned memory."""

import resource
from collections.abc import Iterator

from groundup.plan.doctor.finding import Finding, Machine

_FILES, _PROCESSES = 4096, 4096


def limits(machine: Machine) -> Iterator[Finding]:
    """Open files and processes; pinned memory where there is InfiniBand."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)
    found = f"{_amount(files[0])} open files, {_amount(processes[0])} processes"
    tasks = min(
        (int(text) for text in machine.cgroup("pids.max", old="pids/pids.max") if text.isdecimal()), default=0
    )
    found += f" ({tasks:,} in the control group)" if tasks else ""
    is_fine = True
    if _is_below(files[0], _FILES):
        is_fine = False
        line = f"ulimit -n {files[1]}" if _is_below(files[0], files[1]) else "ulimit -n 65536 (as root)"
        why = "Shards of a corpus, connections of a crawl and ranks each keep files open."
        fix = f"{line}; for good: nofile in /etc/security/limits.conf, docker run --ulimit nofile=65536"
        yield Finding("limits", "warning", found, why, fix)
    if _is_below(processes[0], _PROCESSES) or 0 < tasks < _PROCESSES:
        is_fine = False
        why = "Each rank has tens of threads, which count too: starting one fails."
        fix = "ulimit -u 65536, docker run --pids-limit=-1"
        yield Finding("limits", "warning", found, why, fix)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked != resource.RLIM_INFINITY and has_infiniband(machine):
        is_fine = False
        why = "InfiniBand sends from pinned memory; NCCL fails or takes Ethernet without."
        fix = "ulimit -l unlimited, docker run --ulimit memlock=-1"
        yield Finding("limits", "warning", f"{locked // 1024:,} KiB of pinned memory", why, fix)
    if is_fine:
        yield Finding("limits", "ok", found)


def has_infiniband(machine: Machine) -> bool:
    """Whether there is an InfiniBand or RoCE device."""
    return any((machine.root / "sys/class/infiniband").glob("*"))


def _amount(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def _is_below(limit: int, other: int) -> bool:
    if limit == resource.RLIM_INFINITY:
        return False
    return other == resource.RLIM_INFINITY or limit < other
