"""A global batch that grows while a run begins: the samples of a step, as a function of the data seen."""

import dataclasses
import itertools
from collections.abc import Iterator

from groundup.core.config import config
from groundup.core.config_class import NotNegative


@config
class BatchRamp:
    """The first steps take fewer samples: Megatron-LM's ``--rampup-batch-size start increment samples``.

    The batch begins at ``start`` and grows in equal steps of ``increment`` to ``global_batch_size``, each
    size for an equal part of the first ``samples`` of the data. Early gradients agree with each other, so
    that small batches learn as much from fewer tokens (McCandlish et al. 2018, arXiv:1812.06162; GPT-3,
    arXiv:2005.14165, appendix B).

    Attributes:
        start: Samples of the first step; 0 for ``global_batch_size`` from the first step on.
        increment: Samples by which the batch grows each time.
        samples: Samples of the data over which it grows.
    """

    start: NotNegative = 0
    increment: NotNegative = 0
    samples: NotNegative = 0

    def __post_init__(self) -> None:
        """Refuses half a ramp."""
        if not self.start and (self.increment or self.samples):
            raise ValueError("increment and samples have no effect with start 0")
        if self.start and not (self.increment and self.samples):
            raise ValueError("a ramp needs start, increment and samples, each at least 1")


@dataclasses.dataclass(frozen=True)
class BatchSizes:
    """The sizes of a run's global batches.

    Attributes:
        full: Samples of a step after the ramp.
        ramp: How they begin.
    """

    full: int
    ramp: BatchRamp = dataclasses.field(default_factory=BatchRamp)

    def __post_init__(self) -> None:
        """Refuses a ramp that does not lead to the full size."""
        ramp = self.ramp
        if ramp.start > self.full:
            raise ValueError(f"batch_ramp.start {ramp.start} is more than global_batch_size {self.full}")
        if ramp.start and (self.full - ramp.start) % ramp.increment:
            raise ValueError(
                f"batch_ramp leads from {ramp.start} past global_batch_size {self.full}: the difference is"
                f" not a multiple of batch_ramp.increment {ramp.increment}"
            )

    def __str__(self) -> str:
        first, last = self.every[0], self.full
        return f"{last:,}" if first == last else f"{first:,} to {last:,}"

    @property
    def every(self) -> tuple[int, ...]:
        """All sizes that there are, from the first to the full one."""
        return tuple(size for size, _ in self._stages())

    def at(self, samples: int) -> int:
        """Size of the step that begins at a position in the data."""
        return next(size for size, end in self._stages() if end is None or samples < end)

    def after(self, num_steps: int, *, begin: int = 0) -> int:
        """The position in the data ``num_steps`` steps after the position ``begin``."""
        for size, end in self._stages():
            if end is not None:
                steps = min(num_steps, -(-max(0, end - begin) // size))
                num_steps, begin = num_steps - steps, begin + steps * size
        return begin + num_steps * self.full

    def steps_to(self, samples: float) -> float:
        """Steps, with a fraction of one, that take so many samples from the beginning of the data."""
        taken, num_steps = 0, 0
        for size, end in self._stages():
            steps = -(-max(0, end - taken) // size) if end is not None else None
            if steps is None or samples <= taken + steps * size:
                return num_steps + (samples - taken) / size
            taken, num_steps = taken + steps * size, num_steps + steps
        raise AssertionError("the last stage has no end")

    def steps_within(self, samples: int) -> int:
        """Whole steps that take no more than so many samples from the beginning of the data."""
        taken, num_steps = 0, 0
        for size, end in self._stages():
            within = (samples - taken) // size
            if end is None or within < (steps := -(-max(0, end - taken) // size)):
                return num_steps + within
            taken, num_steps = taken + steps * size, num_steps + steps
        raise AssertionError("the last stage has no end")

    def steps(self, begin: int, num_steps: int) -> Iterator[tuple[int, int]]:
        """The first sample and the size of each of the steps from a position on."""
        for _ in range(num_steps):
            size = self.at(begin)
            yield begin, size
            begin += size

    def _stages(self) -> Iterator[tuple[int, int | None]]:
        """Each size with the position before which steps of it begin; None for the last."""
        ramp = self.ramp
        growths = (self.full - ramp.start) // ramp.increment if ramp.start else 0
        for number in itertools.count():
            if number == growths:
                yield self.full, None
                return
            # Megatron-LM: start + increment * int(samples seen / (ramp samples / growths)).
            yield ramp.start + number * ramp.increment, -(-(number + 1) * ramp.samples // growths)
