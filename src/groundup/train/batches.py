"""From samples to the tensors of a step.

Shapes: B samples, T tokens.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from groundup.core.errors import DataError
from groundup.tokens.dataset import TokenDataset
from groundup.train.loss import IGNORE


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs and what follows each of them.

    Attributes:
        tokens_BT: Input ids.
        targets_BT: The next ids; ``IGNORE`` where there is none to learn.
    """

    tokens_BT: Tensor
    targets_BT: Tensor

    @property
    def num_targets(self) -> int:
        """Target tokens."""
        return int((self.targets_BT != IGNORE).sum())

    def split(self, micro_batch_size: int) -> Iterator["Batch"]:
        """Micro-batches of at most so many samples."""
        pairs = zip(
            self.tokens_BT.split(micro_batch_size), self.targets_BT.split(micro_batch_size), strict=True
        )
        return (Batch(tokens_BT, targets_BT) for tokens_BT, targets_BT in pairs)

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device."""
        return Batch(
            self.tokens_BT.to(device, non_blocking=True), self.targets_BT.to(device, non_blocking=True)
        )


def next_batch(
    dataset: TokenDataset, first_sample: int, count: int, *, vocab_size: int, device: torch.device
) -> Batch:
    """The ``count`` samples from ``first_sample`` on, in the dataset's order.

    Raises:
        DataError: A token id is outside the vocabulary.
    """
    windows = dataset.batch(first_sample, count)
    if windows.max() >= vocab_size:
        row, column = np.argwhere(windows >= vocab_size)[0]
        raise DataError(
            f"token {windows[row, column]} at position {column} of sample {first_sample + row}"
            f" is outside the model's vocabulary of {vocab_size:,} ids",
            where=dataset.name,
            fix="Name the tokenizer that the data was built with, or build the data again;"
            " `groundup tokens verify` finds all such ids.",
        )
    return from_windows(windows).to(device)


def from_windows(windows: npt.NDArray[np.int64]) -> Batch:
    """A batch of windows of T + 1 tokens: int64 [B, T + 1]."""
    tokens = torch.from_numpy(windows)
    return Batch(tokens[:, :-1], tokens[:, 1:])
