"""Megatron-LM's blends of data sets: how many samples it plans of each, and which of them comes when.

Two generations: "megatron" is that of 2023 (commit 992da75), "megatron_core" that of 2026 (commit d98e8a6).
Both take the data set that is furthest behind its weight, the first of several; they differ in what they
round, and so in how many epochs of a data set they shuffle. The order of one data set is
``megatron_order.py``. The result of a step depends on all before it, yet nothing is stored but how many
samples of each data set come before every 4,096th: a block is made again when it is read.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError

_BLOCK = 4096
_SURPLUS = 0.005  # of samples planned of each data set: a blend takes a sample more or less than its share


@dataclasses.dataclass(frozen=True)
class BlendPlan:
    """What a blend takes of its data sets.

    Attributes:
        weights: Of each data set; they add up to 1 but for rounding: float64.
        planned: Samples that each data set is shuffled for.
        size: Samples of the blend.
    """

    weights: npt.NDArray[np.float64]
    planned: tuple[int, ...]
    size: int


def plan_blend(order: str, weights: Sequence[float], num_samples: int) -> BlendPlan:
    """Plans a run of ``num_samples`` samples, rounding as Megatron-LM does.

    Args:
        order: "megatron" or "megatron_core".
        weights: Of each data set, above 0, as they were given.
        num_samples: Of the run.
    """
    if order == "megatron":
        total = 0.0
        for weight in weights:  # in this order: sum() rounds otherwise from Python 3.12 on
            total += weight
        shares = [weight / total for weight in weights]
        planned = [math.ceil(num_samples * share * (1 + _SURPLUS)) for share in shares]
        return BlendPlan(_normalised(shares), tuple(planned), sum(planned))
    once = _normalised(weights)
    targets = [math.ceil(num_samples * share) for share in once.tolist()]
    planned = [math.ceil(target * (1 + _SURPLUS)) for target in targets]
    return BlendPlan(_normalised(once.tolist()), tuple(planned), sum(targets))


def plan_sources(
    order: str, weights: Mapping[str, float | Literal["proportional"]], num_samples: int
) -> Mapping[str, int]:
    """For how many samples each source of a split is shuffled; one of weight 0 for none.

    Args:
        order: "megatron" or "megatron_core".
        weights: As ``SourceConfig`` has them.
        num_samples: That the run takes of the split.
    """
    used = {key: weight for key, weight in weights.items() if weight != 0}
    given = [weight for weight in used.values() if weight != "proportional"]
    if not num_samples or not used:
        return {}
    if not given:
        return dict.fromkeys(used, num_samples if len(used) == 1 else 1)  # 1: for an epoch
    return dict(zip(used, plan_blend(order, given, num_samples).planned, strict=True))


def blend(
    order: str,
    weights: Sequence[float | Literal["proportional"]],
    sizes: Sequence[int],
    num_samples: int,
    *,
    split: str,
) -> "GreedyInterleaving":
    """In which order the sources of a split take turns.

    Args:
        order: "megatron" or "megatron_core".
        weights: As ``SourceConfig`` has them, none 0.
        sizes: Samples of one epoch of each: sources without weights are read once, in proportion.
        num_samples: That the run takes of the split.
        split: For messages.

    Raises:
        DataError: Sources without weights are too small.
    """
    given = [weight for weight in weights if weight != "proportional"]
    if given:
        plan = plan_blend(order, given, num_samples)
        return GreedyInterleaving(plan.weights, plan.size)
    if num_samples > sum(sizes):
        raise DataError(
            f"{num_samples:,} samples are planned, one epoch of each source has {sum(sizes):,}",
            where=f"mixture ({split})",
            fix="Give each source a weight, or lower num_steps.",
        )
    return GreedyInterleaving(_normalised(sizes), num_samples)


def _normalised(weights: Sequence[float]) -> npt.NDArray[np.float64]:
    given = np.array(weights, dtype=np.float64)
    return given / np.sum(given)


class GreedyInterleaving:
    """The order in which Megatron-LM's data sets take turns; see ``mixture.Interleaving``.

    Where each block of the order begins follows from the block before it. All blocks are first run at once
    from guesses, and those whose guess was wrong again, from where the block before them has ended, until
    none is: then each begins where the one before it ends.

    Args:
        weights: Of each data set, float64, as ``BlendPlan`` has them.
        length: Of the order.
    """

    def __init__(self, weights: npt.NDArray[np.float64], length: int) -> None:
        self.num_sources = len(weights)
        self.length = length
        self._weights = weights
        begins = np.arange(-(-length // _BLOCK)) * _BLOCK
        self._before = _guess(weights, begins)  # samples of each data set before each block: [D, blocks]
        changed = np.arange(len(begins) - 1)
        while len(changed):
            ends = self._run(changed)
            wrong = (ends != self._before[:, changed + 1]).any(axis=0)
            self._before[:, changed[wrong] + 1] = ends[:, wrong]
            changed = changed[wrong] + 1
            changed = changed[changed < len(begins) - 1]
        self._block = functools.lru_cache(maxsize=2)(self._make_block)

    def at(self, positions: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The source at each position, and how many of its samples came before: int64 of the same shape.

        Raises:
            DataError: A position is not below ``length``.
        """
        given = np.asarray(positions, dtype=np.int64)
        if given.size and int(given.max()) >= self.length:
            raise DataError(
                f"sample {given.max()} of a blend is beyond the {self.length} that were planned",
                where="data.order",
                fix="With Megatron-LM's order the length of a run is fixed when it begins.",
            )
        sources, counts = np.empty_like(given), np.empty_like(given)
        blocks = given // _BLOCK
        for block in np.unique(blocks).tolist():
            here = blocks == block
            block_sources, block_counts = self._block(block)
            sources[here] = block_sources[given[here] - block * _BLOCK]
            counts[here] = block_counts[given[here] - block * _BLOCK]
        return sources, counts

    def counts(self, length: int) -> list[int]:
        """Samples of each source among the first ``length``; they add up to it."""
        block = min(length // _BLOCK, self._before.shape[1] - 1)
        sources, _ = self._block(block)
        inside = np.bincount(sources[: length - block * _BLOCK], minlength=self.num_sources)
        return [int(count) for count in self._before[:, block] + inside]

    def longest(self, limits: Sequence[int]) -> int:
        """The longest prefix that holds at most so many samples of each source."""
        within = (self._before <= np.array(limits)[:, None]).all(axis=0)
        block = int(np.flatnonzero(within)[-1])  # counts only grow
        sources, counts = self._block(block)
        over = np.flatnonzero(counts >= np.array(limits)[sources])
        end = int(over[0]) if len(over) else _BLOCK
        return min(block * _BLOCK + end, self.length)

    def _make_block(self, block: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        sources, counts = np.empty((2, _BLOCK), dtype=np.int64)
        self._run(np.array([block]), sources, counts)
        return sources, counts

    def _run(
        self,
        blocks: npt.NDArray[np.int64],
        sources: npt.NDArray[np.int64] | None = None,
        counts: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Runs through blocks from where they begin; returns the samples of each data set before their ends.

        Args:
            blocks: Their numbers.
            sources: Filled with the data set of each sample of the only block.
            counts: Filled with the samples of it before each.
        """
        before: npt.NDArray[np.float64] = self._before[:, blocks]
        columns = np.arange(len(blocks))
        weights = self._weights[:, None]
        for step in range(_BLOCK):
            behind = weights * np.maximum(blocks * _BLOCK + step, 1) - before
            chosen = behind.argmax(axis=0)  # the first of several
            if sources is not None and counts is not None:
                sources[step], counts[step] = chosen[0], before[chosen[0], 0]
            before[chosen, columns] += 1
        return before


def _guess(weights: npt.NDArray[np.float64], begins: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Samples of each data set among the first so many, by the largest remainders: [D, len(begins)]."""
    exact = weights[:, None] * begins
    whole = np.floor(exact)
    missing = begins - whole.sum(axis=0)
    rank = np.argsort(np.argsort(whole - exact, axis=0, kind="stable"), axis=0, kind="stable")
    guess: npt.NDArray[np.float64] = whole + (rank < missing)
    return guess
