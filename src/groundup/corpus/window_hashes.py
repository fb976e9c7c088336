"""Hashes of n-grams, by arrays."""

import numpy as np
import numpy.typing as npt

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, odd


def window_hashes(values: npt.NDArray[np.uint64], size: int) -> npt.NDArray[np.uint64]:
    """Returns a 64-bit hash of each run of values: ``[n]`` -> ``[n - size + 1]``.

    Args:
        values: At least ``size`` of them.
        size: Values of a run.
    """
    hashes = np.zeros(len(values) - size + 1, np.uint64)
    for offset in range(size):  # wraps around
        hashes = (hashes ^ (hashes >> np.uint64(31))) * _MULTIPLIER + values[offset : offset + len(hashes)]
    return hashes
