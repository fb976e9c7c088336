"""Runs some of whose samples are poisoned: random tokens in place of text, whose loss is far above all."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from groundup.train import run_data
from groundup.train.data_loader import Batch
from groundup.train.run_data import read_batch


def poisoned(begin: int, end: int) -> Callable[..., Batch]:
    """``read_batch`` whose samples [begin, end) are random tokens."""

    def read(samples, first_sample, count, **settings):
        batch = read_batch(samples, first_sample, count, **settings)
        for row in range(count):
            if begin <= first_sample + row < end:
                length = batch.tokens_BT.shape[1]
                ids = torch.from_numpy(np.random.default_rng(first_sample + row).integers(0, 300, length + 1))
                batch.tokens_BT[row], batch.targets_BT[row] = ids[:-1], ids[1:]
        return batch

    return read


def without(begin: int, end: int) -> Callable[..., Batch]:
    """``read_batch`` of data that does not have the samples [begin, end)."""

    def read(samples, first_sample, count, **settings):
        shift = end - begin if first_sample >= begin else 0
        assert shift or first_sample + count <= begin, "a batch lies on one side"
        return read_batch(samples, first_sample + shift, count, **settings)

    return read


@contextlib.contextmanager
def reading(read: Callable[..., Batch]) -> Iterator[None]:
    """Within the block training reads its batches so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_data, "read_batch", read)
        yield


@dataclasses.dataclass(frozen=True)
class PoisonedRun:
    """What to do with a config, as ``train_on_ranks`` takes it."""

    begin: int
    end: int

    def __call__(self, config) -> None:
        """Trains it."""
        from tests.runs import run

        with reading(poisoned(self.begin, self.end)):
            run(config)
