"""The C library's allocator, tuned for training on a CPU."""

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Tells glibc to keep large freed blocks for the next step instead of returning them to the system.

    By default each activation is mapped and unmapped anew, and the kernel clears its pages each time:
    about half of the time of a training step on a CPU (see ``docs/LOG.md``). Returns whether
    the C library took the setting; others than glibc have no such setting, and need none.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))
