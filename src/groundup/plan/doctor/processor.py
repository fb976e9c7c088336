"""Processor and memory, as far as this process may use them."""

import dataclasses
import os
import platform
from collections.abc import Iterator

from groundup.plan.doctor.finding import Finding, Machine

GIB = 2**30
_LITTLE_MEMORY = 4 * GIB
_SETS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX512-BF16",
    "amx_bf16": "AMX-BF16",
    "amx_fp16": "AMX-FP16",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "BF16",
}
"""Flag of /proc/cpuinfo -> instruction set."""


def processor(machine: Machine) -> Iterator[Finding]:
    """Model, instruction sets, and the cores that affinity and control group allow."""
    lines = [line.partition(":") for line in machine.read("proc/cpuinfo").splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    model = fields.get("model name") or platform.processor() or platform.machine()
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    sets = [name for flag, name in _SETS.items() if flag in flags]
    cores = allowed_cores()
    found = f"{model}, {cores} of {os.cpu_count()} cores; {', '.join(sets) or 'no vector instructions known'}"
    quota = cpu_quota(machine)
    if quota is not None and quota < cores:
        yield Finding(
            "processor",
            "warning",
            f"{found}; the control group grants the time of {quota:g}",
            "As many threads as cores would be stopped in the midst of each step.",
            f"export OMP_NUM_THREADS={max(1, int(quota))}, or give the container more (docker run --cpus).",
        )
    else:
        yield Finding("processor", "ok", found)


def allowed_cores() -> int:
    """Cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(machine: Machine) -> float | None:
    """Cores' worth of time that the control group grants; None without a limit."""
    found = []
    for text in machine.cgroup("cpu.max", old="cpu/cpu.cfs_quota_us"):
        quota, _, period = text.partition(" ")
        if quota.isdecimal():
            found.append(int(quota) / int(period or 100_000))
    return min(found, default=None)


def memory(machine: Machine) -> Iterator[Finding]:
    """Memory of the machine, what is free of it, and the limit of the control group."""
    room = memory_room(machine)
    if room is None:
        yield Finding("memory", "ok", "not told by this system")
        return
    found = f"{room.free_outside / GIB:.1f} of {room.total / GIB:.1f} GiB free"
    if room.limit is not None:
        found += (
            f"; the control group grants {room.limit / GIB:.1f} GiB, of which {room.free / GIB:.1f} are free"
        )
    if room.free < _LITTLE_MEMORY:
        yield Finding(
            "memory",
            "warning",
            found,
            "A process that takes more is killed (exit code -9), without a word.",
            "End other processes, or give the container more (docker run --memory, srun --mem).",
        )
    else:
        yield Finding("memory", "ok", found)


@dataclasses.dataclass(frozen=True)
class MemoryRoom:
    """Memory of a machine in bytes.

    Attributes:
        total: Of the machine.
        free_outside: Of that, without regard to a control group.
        limit: Of the control group; None without one.
        free: For this process.
    """

    total: int
    free_outside: int
    limit: int | None
    free: int


def memory_room(machine: Machine) -> MemoryRoom | None:
    """Returns the memory that processes may still take; None where the system does not tell."""
    fields = {}
    for line in machine.read("proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    if not fields:
        return None
    total, outside = fields["MemTotal"], fields.get("MemAvailable", fields["MemTotal"])
    numbers = [
        int(text)
        for text in machine.cgroup("memory.max", old="memory/memory.limit_in_bytes")
        if text.isdecimal()
    ]
    limit = min([number for number in numbers if number < total], default=None)
    free = outside
    if limit is not None:
        used = [int(text) for text in machine.cgroup("memory.current", old="memory/memory.usage_in_bytes")]
        free = min(free, max(0, limit - (used[0] if used else 0)))
    return MemoryRoom(total, outside, limit, free)
