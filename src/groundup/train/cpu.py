"""Training on a CPU: the number of threads, tried in the first steps and again when steps change speed.

Small models are quicker with fewer threads than there are cores, and so is any model beside busy processes:
at the end of each parallel loop all threads wait for the slowest. And glibc's allocator.
"""

import contextlib
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from groundup.core.log import logger
from groundup.parallel.mesh import ParallelMesh
from groundup.train.config import TrainConfig

_TURN_SECONDS = 0.05
"""Time with one number of threads before it is the other's turn: some slices of the OS scheduler."""
_TURNS = 5
_CLEAR = 1.15
"""A comparison ends early where each turn of one took longer than each of the other by this factor."""
_GAIN = 1.03
"""A change of threads must make steps faster by this factor."""
_LONGEST_STEP = 5.0
"""Longer steps, in seconds, are not tuned: they wait little, and trials would take minutes."""
_WINDOW_SECONDS, _WINDOW_STEPS = 2.0, 5
_CHANGE = 1.3
"""Steps that take longer or shorter by this factor are a reason to try again."""
_TELL = 1.5
_SECONDS_BETWEEN_TRIALS = 10.0

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt."""

T = TypeVar("T")
_Trying = Generator[int, float, T]
"""Asks for a step with a number of threads, and is sent its seconds a sample."""


def counts_to_try(
    config: TrainConfig, mesh: ParallelMesh, *, present: int, environment: Mapping[str, str] = os.environ
) -> tuple[int, ...]:
    """Returns numbers of threads to try, falling; ``present`` alone where there is nothing to choose.

    Another number sums in another order, so that a deterministic run keeps its own; so do a run whose number
    was given, and ranks, which share the cores.
    """
    names = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    given = config.threads > 0 or not environment.keys().isdisjoint(names)
    if given or config.deterministic or config.compile or mesh.size > 1 or mesh.device.type != "cpu":
        return (present,)
    return tuple(present >> halvings for halvings in range(present.bit_length()))


class Threads:
    """Chooses among numbers of threads while a run trains; leaving its block restores the first.

    Entered again, it continues with the number that it had chosen.

    Args:
        counts: As ``counts_to_try`` gives them.
        set_count: Makes a number of threads take effect.
        clock: Seconds.
    """

    def __init__(
        self,
        counts: Sequence[int],
        *,
        set_count: Callable[[int], None] = torch.set_num_threads,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.count = counts[0]
        self.is_trying = len(counts) > 1
        self._counts = counts
        self._set_count = set_count
        self._clock = clock
        self._num_samples = 1
        self._seconds: dict[int, float] = {}
        self._trial_began = self._trial_ended = 0.0
        self._choosing = self._choose()
        self._next = next(self._choosing)

    def __enter__(self) -> "Threads":
        self._use(self._next)
        return self

    def __exit__(self, *_: object) -> None:
        self._use(self._counts[0])

    @contextlib.contextmanager
    def step(self, num_samples: int) -> Iterator[None]:
        """Measures a step, and sets the number of threads of the next."""
        began = self._clock()
        yield
        if len(self._counts) > 1:
            self._num_samples = num_samples
            self._next = self._choosing.send((self._clock() - began) / num_samples)
            self._use(self._next)

    def _use(self, count: int) -> None:
        if count != self.count:
            self._set_count(count)
        self.count = count

    def _choose(self) -> _Trying[None]:
        index = 0
        yield self._counts[index]  # the first step is like no other
        first = yield self._counts[index]
        while first * self._num_samples > _LONGEST_STEP:
            self.is_trying = False
            yield self._counts[index]
        index = yield from self._climb(index)
        logger.info("%s", self._outcome(self._counts[index]))
        while True:
            before, reference = self._counts[index], self._seconds[self._counts[index]]
            self.is_trying = False
            yield from self._watch(before, reference)
            self.is_trying = True
            index = yield from self._climb(index)
            chosen = self._counts[index]
            self._tell(self._seconds[before] / reference, chosen=chosen, is_change=chosen != before)

    def _climb(self, index: int) -> _Trying[int]:
        """Moves from one number to its neighbours as long as steps become faster."""
        self._trial_began = self._clock()
        self._seconds = {}
        for direction in (1, -1):
            start = index
            while 0 <= index + direction < len(self._counts):
                present, other = self._counts[index], self._counts[index + direction]
                yield from self._compare(present, other)
                if self._seconds[other] * _GAIN > self._seconds[present]:
                    break
                index += direction
            if index != start:
                break
        self._trial_ended = self._clock()
        return index

    def _compare(self, present: int, other: int) -> _Trying[None]:
        """Measures the median seconds a sample of two numbers, which take turns."""
        for count in (other, present):
            yield count  # not counted: threads and kernels are made
        turns: dict[int, list[float]] = {present: [], other: []}
        for number in range(_TURNS):
            for count in (present, other) if number % 2 else (other, present):
                turns[count].append((yield from self._turn(count)))
            low, high = sorted(turns.values(), key=min)
            if number and max(low) * _CLEAR < min(high):
                break
        self._seconds |= {count: statistics.median(found) for count, found in turns.items()}

    def _turn(self, count: int, *, seconds: float = _TURN_SECONDS, steps: int = 1) -> _Trying[float]:
        """Returns the mean seconds a sample of at least so many steps and seconds."""
        found: list[float] = []
        passed = 0.0
        while passed < seconds or len(found) < steps:
            found.append((yield count))
            passed += found[-1] * self._num_samples
        return statistics.fmean(found)

    def _watch(self, count: int, reference: float) -> _Trying[None]:
        """Returns when steps have become slower or faster."""
        rest = max(_SECONDS_BETWEEN_TRIALS, 10 * (self._trial_ended - self._trial_began))
        while True:
            found = yield from self._turn(count, seconds=_WINDOW_SECONDS, steps=_WINDOW_STEPS)
            ratio = found / reference
            if max(ratio, 1 / ratio) > _CHANGE and self._clock() - self._trial_ended > rest:
                return

    def _outcome(self, chosen: int) -> str:
        times = ", ".join(
            f"{1e3 * seconds * self._num_samples:.4g} ms with {count}"
            for count, seconds in sorted(self._seconds.items(), reverse=True)
        )
        return f"threads: a step takes {times}; {chosen} from here on"

    def _tell(self, ratio: float, *, chosen: int, is_change: bool) -> None:
        if is_change or ratio > _TELL:
            how = f"{ratio:.1f} times as long as" if ratio > 1 else f"{1 / ratio:.1f} times shorter than"
            load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
            logger.info("steps take %s before (%s); %s", how, load, self._outcome(chosen))


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
