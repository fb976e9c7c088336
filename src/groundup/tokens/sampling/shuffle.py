"""The order of samples: a seeded bijection of [0, size) that is computed, never stored.

A balanced Feistel network permutes the smallest power of four that holds ``size``; results outside
[0, size) are fed through it again until they fall inside ("cycle walking", Black and Rogaway,
"Ciphers with Arbitrary Finite Domains", CT-RSA 2002), which keeps it a bijection. Any position is
reached in constant time, so the state of a loader is one integer.
"""

import functools
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

_ROUNDS = 8
_FIRST_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, from the golden ratio (Knuth, TAOCP vol. 3, 6.4)
_SECOND_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)  # odd, from SplitMix64's finaliser
_LARGEST_SIZE = 1 << 62


class Order:
    """The permutation of [0, size) that belongs to (seed, epoch).

    Args:
        size: Number of samples, 1 to 2**62.
        seed: Any integer.
        epoch: Each epoch has its own permutation.
    """

    def __init__(self, size: int, *, seed: int, epoch: int) -> None:
        if not 1 <= size <= _LARGEST_SIZE:
            raise ValueError(f"an order has 1 to 2**62 samples, not {size}")
        self.size = size
        self._half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        self._keys = _round_keys(seed, epoch, size)

    def sample(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The samples at these positions of the order, int64, of the same shape."""
        return self._walk(positions, self._keys)

    def position(self, samples: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Where in the order these samples come: the inverse of ``sample``."""
        # A Feistel network with its halves exchanged before and after is undone by its reversed keys.
        return self._walk(samples, self._keys[::-1], exchanged=True)

    def _walk(
        self, values: npt.ArrayLike, keys: tuple[np.uint64, ...], *, exchanged: bool = False
    ) -> npt.NDArray[np.int64]:
        given = np.asarray(values, dtype=np.int64)
        if given.size and (given.min() < 0 or given.max() >= self.size):
            raise IndexError(f"outside [0, {self.size})")
        walked = self._network(given.ravel().astype(np.uint64), keys, exchanged)
        size = np.uint64(self.size)
        outside = np.flatnonzero(walked >= size)
        while outside.size:
            again = self._network(walked[outside], keys, exchanged)
            walked[outside] = again
            outside = outside[again >= size]
        shaped: npt.NDArray[np.int64] = walked.astype(np.int64).reshape(given.shape)
        return shaped

    def _network(self, values: Any, keys: tuple[np.uint64, ...], exchanged: bool) -> Any:
        bits = self._half_bits
        mask = (np.uint64(1) << bits) - np.uint64(1)
        left, right = values >> bits, values & mask
        if exchanged:
            left, right = right, left
        down = np.uint64(64) - bits
        for key in keys:
            mixed = (right + key) * _FIRST_MULTIPLIER
            mixed ^= mixed >> np.uint64(32)
            mixed *= _SECOND_MULTIPLIER
            left, right = right, left ^ (mixed >> down)  # a product's top bits depend on all bits below
        if exchanged:
            left, right = right, left
        return left << bits | right


def samples_at(first_index: int, count: int, *, size: int, seed: int) -> npt.NDArray[np.int64]:
    """The samples at the indices [first_index, first_index + count): int64 [count].

    Args:
        first_index: 0 or more; it runs on through the epochs, each of which has its own order.
        count: Number of indices.
        size: Samples of an epoch.
        seed: Any integer.
    """
    found = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        epoch, position = divmod(first_index + done, size)
        take = min(count - done, size - position)
        order = Order(size, seed=seed, epoch=epoch)
        found[done : done + take] = order.sample(np.arange(position, position + take))
        done += take
    return found


@functools.lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int, size: int) -> tuple[np.uint64, ...]:
    digest = hashlib.blake2b(f"groundup order 1: {seed} {epoch} {size}".encode(), digest_size=8 * _ROUNDS)
    return tuple(np.frombuffer(digest.digest(), dtype="<u8").astype(np.uint64))
