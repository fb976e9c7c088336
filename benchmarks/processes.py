"""Contenders as processes, on a machine that does nothing else."""

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

TIMEOUT_SECONDS = 1800


def run_process(command: list[str]) -> str:
    """Runs a command without the shell's allocator settings; returns its stdout, or stops with stderr."""
    allocator = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_", "THP_MEM_ALLOC")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(allocator)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def wait_for_idle_cpu(*, busy_limit: float = 0.1) -> None:
    """Returns once others use less than ``busy_limit`` of the cores that we may use for two seconds.

    Linux only.
    """
    for _ in range(TIMEOUT_SECONDS // 2):
        before = _cpu_ticks()
        time.sleep(2)
        busy, total = (after - earlier for after, earlier in zip(_cpu_ticks(), before, strict=True))
        if busy < busy_limit * total:
            return
    sys.exit(f"other processes kept the CPU busy for {TIMEOUT_SECONDS} s: no fair measurement")


def _cpu_ticks() -> tuple[int, int]:
    """Busy and all ticks since boot; idle, waiting for the disk and stolen ones do not count as busy."""
    own = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    counts = [[int(field) for field in fields] for name, *fields in lines if name in own]
    user, nice, system, idle, iowait, irq, softirq, steal, *_ = map(sum, zip(*counts, strict=True))
    busy = user + nice + system + irq + softirq
    return busy, busy + idle + iowait + steal


def touch_memory(num_bytes: int) -> None:
    """Uses memory and frees it: a virtual machine may have given what was free back to its host.

    To get it again takes longer than to write to it, and would fall on whoever comes next. At most half of
    the machine's memory.
    """
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    np.ones(min(num_bytes, half), dtype=np.uint8)


def describe_machine(*packages: str) -> dict[str, Any]:
    """The machine, and the versions of these packages."""
    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in cpu_lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "avx512_bf16": any("avx512_bf16" in line for line in cpu_lines),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }
