"""Weights that are not finite, told by name."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LazyModel
from groundup.core.errors import CheckpointError

_SHOWN = 3


def require_finite(weights: Iterable[tuple[str, Tensor]], where: Path) -> None:
    """Refuses weights of which some numbers are NaN or infinite.

    Args:
        weights: With their names.
        where: What they were read from.

    Raises:
        CheckpointError: Names the first such weights.
    """
    found = list(_not_finite(weights))
    if not found:
        return
    more = f", and of {len(found) - _SHOWN} more weights" if len(found) > _SHOWN else ""
    raise CheckpointError(
        f"numbers that are not finite: {', '.join(found[:_SHOWN])}{more}",
        where=where,
        fix="It is damaged, or its training went wrong before it was saved: take an earlier checkpoint.",
    )


def weights_of(stored: LazyModel) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model on a disk, one at a time in memory."""
    return ((name, tensor.read()) for name, tensor in stored.weights.items())


def _not_finite(weights: Iterable[tuple[str, Tensor]]) -> Iterator[str]:
    for name, tensor in weights:
        # The sum tells at once, unless it overflows.
        if not torch.isfinite(tensor.detach().sum()):
            count = int((~torch.isfinite(tensor)).sum())
            if count:
                yield f"{count:,} of {tensor.numel():,} in {name}"
