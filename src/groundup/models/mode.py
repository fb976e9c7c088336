"""Evaluation mode for a while."""

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off within the block, and on again after it where it was on."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
