"""Proves that a written model is the model that was read, before the folder gets its name."""

import dataclasses
from pathlib import Path

from groundup.checkpoint.formats import open_lazy
from groundup.checkpoint.lazy import LazyModel, require_finite
from groundup.checkpoint.parity import TOLERANCE, Parity, compare_stored
from groundup.core.errors import CheckpointError


@dataclasses.dataclass(kw_only=True)
class Proof:
    """Reads a written folder back and compares it; call it with the folder.

    Attributes:
        source: The model that was read.
        stored: The same as it was to be written: perhaps rounded.
        out: The name that the folder is to get.
        keeps_masters: Whether the format keeps the weights in fp32 beside 16-bit ones, with optimizer state.
        parity: With what was to be written; set by the call.
        rounding: With the source, where weights were rounded; set by the call.
        has_moments: Whether the optimizer's state came back; set by the call.
    """

    source: LazyModel
    stored: LazyModel
    out: Path
    keeps_masters: bool
    parity: Parity | None = None
    rounding: Parity | None = None
    has_moments: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether the source's own weights came back, though others are beside them."""
        return self.keeps_masters and self.has_moments

    def __call__(self, folder: Path) -> None:
        """Compares.

        Raises:
            CheckpointError: The logits differ, or are not finite.
        """
        reopened = open_lazy(folder, moments=bool(self.stored.moments))
        self.has_moments = bool(reopened.moments)
        self.parity = compare_stored(self.source if self.is_exact else self.stored, reopened)
        if not self.parity.is_finite:
            require_finite(self.source.read_weights(), self.source.source)
            raise CheckpointError(
                "its logits are not finite, though its weights are: a model so large in its numbers cannot be"
                " compared with what would be written",
                where=self.source.source,
            )
        if not self.parity.within(TOLERANCE):
            raise CheckpointError(
                f"the written model differs from the original: logits by {self.parity.max_difference:.1e},"
                f" allowed are {TOLERANCE:.0e} of the largest; it was removed",
                where=self.out,
                fix="This is a fault of groundup: please report it with the model's config.",
            )
        dtypes = {name: tensor.dtype for name, tensor in self.stored.weights.items()}
        if not self.is_exact and any(t.dtype != dtypes[name] for name, t in self.source.weights.items()):
            self.rounding = compare_stored(self.source, reopened)
