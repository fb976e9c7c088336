"""A model ready for use, wherever it came from."""

import dataclasses
import math
from pathlib import Path

from torch import nn

from groundup.checkpoint.companions import Companions
from groundup.core.errors import CheckpointError
from groundup.models import ModelConfig
from groundup.tokens.tokenizer.base import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its tokenizer.

    Attributes:
        config: The architecture.
        model: In evaluation mode, weights in fp32, on the device that was asked for.
        tokenizer: What its token ids mean.
        source: The folder it was read from.
        bos_ids: Ids that stand before every prompt (the begin token of many Llamas); none for
            models trained here.
        companions: Chat template, settings of generation and other files beside it.
    """

    config: ModelConfig
    model: nn.Module
    tokenizer: Tokenizer
    source: Path
    bos_ids: tuple[int, ...] = ()
    companions: Companions = dataclasses.field(default_factory=Companions)


def bos_id(loaded: LoadedModel) -> int:
    """The id that a text without a prompt begins with: the begin token, or else the end of a document."""
    return loaded.bos_ids[0] if loaded.bos_ids else loaded.tokenizer.end_of_document_id


def require_finite_loss(loss: float, loaded: LoadedModel) -> None:
    """Refuses to give a figure that was computed of a loss that is no number.

    Raises:
        CheckpointError: The loss is NaN or infinite.
    """
    if not math.isfinite(loss):
        raise CheckpointError(
            f"its loss is {loss}, though its weights are finite: numbers overflow while it computes",
            where=loaded.source,
            fix="Measure with --precision fp32, or take an earlier checkpoint.",
        )


def stop_ids(loaded: LoadedModel) -> frozenset[int]:
    """The ids of which each ends a text: the end of a document, and those of the settings of generation."""
    return frozenset({loaded.tokenizer.end_of_document_id, *loaded.companions.end_ids})
