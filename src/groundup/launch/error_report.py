"""Describes the root cause for the user: which rank, where, what, the likely reason and what to do."""

import re
import signal
from pathlib import Path

from groundup.launch.errors import RankFailure

_SHOWN_LINES = 20
_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED")
_SIGNALS = {
    signal.SIGSEGV: "Native code (a library or driver) touched memory that is not its own; the Python stack"
    " is in the output.",
    signal.SIGBUS: "A mapped file was cut short, or /dev/shm or the disk is full: compare `df -h` and check"
    " the data with `groundup tokens verify`.",
    signal.SIGABRT: "Native code gave up; its reason is in the output.",
    signal.SIGILL: "A library was built for another processor.",
    signal.SIGTERM: "Somebody asked this rank alone to stop: signal the launcher, which tells all of them.",
}


def describe_failure(failure: RankFailure, *, log: Path | None, oom_kills: int) -> str:
    """Returns the lines that the launcher prints last.

    Args:
        failure: The root cause.
        log: What the rank wrote; None where that went to the terminal.
        oom_kills: Processes that the kernel has killed for want of memory since the launch.
    """
    place = f"step {failure.step}, phase {failure.phase}" if failure.step else f"phase {failure.phase}"
    what = failure.message if failure.kind == "exit" else f"{failure.kind}: {failure.message}"
    lines = [f"groundup: first failure: rank {failure.rank} ({failure.host}), {place}: {what}"]
    hint = _hint(failure, oom_kills)
    if hint:
        lines.append(f"  {hint}")
    if log:
        lines.append(f"  Its output: {log}")
    return "\n".join(lines)


def failure_excerpt(failure: RankFailure, output: str) -> str:
    """Returns what stands above the description: the traceback, or else the rank's last lines."""
    if failure.traceback:
        lines = failure.traceback.splitlines()
    elif failure.exit_code is not None:
        lines = output.splitlines()[-_SHOWN_LINES:]
    else:
        return ""
    return "".join(f"[rank {failure.rank}] {line}\n" for line in lines)


def count_oom_kills() -> int:
    """Returns how many processes the kernel has killed for want of memory; 0 where it does not say."""
    found = re.search(r"^oom_kill (\d+)$", _text("/proc/vmstat"), re.MULTILINE)
    return int(found[1]) if found else 0


def _hint(failure: RankFailure, oom_kills: int) -> str:
    code = failure.exit_code
    if code is not None and code == -signal.SIGKILL:
        cause = (
            f"Meanwhile the kernel killed {oom_kills} of this machine's processes for want of memory"
            if oom_kills
            else "Most often that is the kernel, for want of host memory (`dmesg` tells if so)"
        )
        return f"{cause}{_free_memory()}. Start fewer ranks on this machine, or lower micro_batch_size."
    if code is not None and code < 0:
        return _SIGNALS.get(signal.Signals(-code), "")
    if code == 0:
        return "It ended while the others still needed it."
    if code is not None:
        return "It left no exception."
    if not failure.needs_user and _OUT_OF_MEMORY.search(f"{failure.kind}: {failure.message}"):
        return (
            "The GPU's memory is full. Halve micro_batch_size (global_batch_size stays, so results do not"
            " change); next, recompute.mode=selective, layout.zero=3, or a larger layout.tp."
        )
    if "EADDRINUSE" in failure.message or "address already in use" in failure.message.lower():
        return "Another program took the port where the ranks meet: run again, or set MASTER_PORT."
    if failure.is_peer_loss:
        return "It lost another rank, which left no trace here; under several launchers, look at the others'."
    return ""


def _free_memory() -> str:
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE))
    if "MemAvailable" not in kilobytes:
        return ""
    free, total = (int(kilobytes[name]) * 1024 / 1e9 for name in ("MemAvailable", "MemTotal"))
    return f"; {free:.1f} of {total:.1f} GB are free now"


def _text(path: str) -> str:
    """A file of Linux's about itself; empty on other systems."""
    return Path(path).read_text() if Path(path).is_file() else ""
