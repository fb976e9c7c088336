"""What is predicted from what in a sample, its documents joined or kept apart.

Shapes: B samples, T tokens.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.core.vocabulary import require_token_ids
from groundup.tokens.sampling.dataset import PADDING, Samples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictions:
    """The inputs of a model and what follows each of them.

    Attributes:
        tokens_BT: Input ids; 0 where the sample is padded.
        targets_BT: The next ids; ``PADDING`` where there is none to predict.
        positions_BT: Of each token in its document; None for its position in the sample.
        documents_BT: Number of each token's document within its sample, int32, not decreasing; None
            where attention crosses documents.
    """

    tokens_BT: npt.NDArray[np.int64]
    targets_BT: npt.NDArray[np.int64]
    positions_BT: npt.NDArray[np.int64] | None = None
    documents_BT: npt.NDArray[np.int32] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The loss in nats summed over predicted tokens, and the bytes of text in these; 0 if not counted.

    Another objective than predicting tokens has its own loss over its own count, and ``figures`` beside it.
    """

    total_loss: float
    num_tokens: int
    num_bytes: int
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.total_loss / self.num_tokens

    @property
    def perplexity(self) -> float:
        """exp(loss), infinite where that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Loss in bits, divided by the bytes of text: comparable between tokenizers. NaN without bytes."""
        return self.total_loss / math.log(2) / self.num_bytes if self.num_bytes else math.nan

    def describe(self) -> str:
        """Returns the figures in a line."""
        if self.figures:
            shown = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in self.figures.items()]
            return " | ".join([f"loss {self.loss:.4f}", *shown])
        parts = [f"loss {self.loss:.4f}", f"perplexity {self.perplexity:.2f}"]
        return " | ".join([*parts, f"{self.bits_per_byte:.4f} bits per byte", f"{self.num_tokens} tokens"])


def read_predictions(
    samples: Samples,
    first_index: int,
    count: int,
    *,
    vocab_size: int,
    ordered: bool = False,
    mask_documents: bool,
) -> Predictions:
    """The samples at the indices [first_index, first_index + count).

    Args:
        samples: Where they come from.
        first_index: 0 or more.
        count: Number of samples.
        vocab_size: Of the model.
        ordered: In file order instead of the seeded one.
        mask_documents: Keep documents apart: see ``predictions``.

    Raises:
        DataError: A token id is outside the vocabulary.
    """
    windows = samples.batch(first_index, count, ordered=ordered)
    require_token_ids(
        windows,
        vocab_size,
        place=lambda row, column: f"position {column} of sample {first_index + row}",
        where=samples.name,
        padding=PADDING,
    )
    if not mask_documents:
        return predictions(windows)
    return predictions(windows, samples.document_starts(first_index, count, ordered=ordered))


def predictions(windows: npt.NDArray[np.int64], starts: npt.NDArray[np.bool_] | None = None) -> Predictions:
    """Splits windows of T + 1 tokens, int64 [B, T + 1], into inputs and targets.

    Args:
        windows: As from ``Samples.batch``; rows may end in ``PADDING``.
        starts: As from ``Samples.document_starts``, bool [B, T + 1], to keep documents apart: a token is
            predicted from its own document only, so the first one is not predicted, and positions count
            from the document's beginning, or from the window's where that comes later. None joins them.
    """
    is_padding = windows == PADDING
    tokens_BT, targets_BT = windows[:, :-1], windows[:, 1:]
    if is_padding.any():
        tokens_BT = np.where(is_padding[:, :-1], 0, tokens_BT)
    if starts is None:
        return Predictions(tokens_BT=tokens_BT, targets_BT=targets_BT)
    # Padding is a document of its own, which no other attends to.
    begins_BT = starts[:, :-1] | (is_padding[:, :-1] & ~_before(is_padding))
    index_T = np.arange(begins_BT.shape[1])
    first_BT = np.maximum.accumulate(np.where(begins_BT, index_T, 0), axis=1)
    return Predictions(
        tokens_BT=tokens_BT,
        targets_BT=np.where(starts[:, 1:], PADDING, targets_BT),
        positions_BT=index_T - first_BT,
        documents_BT=begins_BT.cumsum(axis=1, dtype=np.int32),
    )


def _before(flags: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """The flag of the token before each of the first T; False before the first."""
    shifted = np.zeros_like(flags[:, :-1])
    shifted[:, 1:] = flags[:, :-2]
    return shifted
