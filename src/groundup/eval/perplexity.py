"""Measures how well a model predicts a text: loss, perplexity, bits per byte.

Shapes: B windows, T tokens of a window, M = B T tokens, C tokens of a chunk, D model, V true vocabulary.
"""

import functools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn
from torch.nn.functional import cross_entropy

from groundup.core.errors import DataError
from groundup.core.vocabulary import require_token_ids
from groundup.models import ModelConfig, evaluating, lm_head
from groundup.tokens.dataset.token_source import Tokens
from groundup.tokens.sampling.collate import Evaluation, Predictions, predictions, read_predictions
from groundup.tokens.sampling.dataset import PADDING, Samples
from groundup.tokens.tokenizer.base import Tokenizer

_LOGITS_BYTES = 64 << 20
"""Most memory that the fp32 logits of a chunk of tokens take."""
_CHUNK = 1 << 22

SummedLoss = Callable[[Predictions], float]
"""The loss summed over a batch's targets, in nats."""


def perplexity(
    model: nn.Module,
    config: ModelConfig,
    tokens: Tokens,
    *,
    byte_lengths: npt.NDArray[np.int64] | None = None,
    sequence_length: int = 0,
    batch_size: int = 8,
    max_tokens: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Predicts every token but the first, in windows that do not overlap, in the order of the text.

    A window of T tokens is predicted from the one token before it and from itself; the last window may
    be shorter. So each token is predicted exactly once, and the batch size does not matter.

    Args:
        model: On its device; in evaluation mode while it is measured.
        config: Its architecture.
        tokens: [num_tokens], any integer dtype, memory-mapped or not.
        byte_lengths: [vocabulary] int64, from ``token_byte_lengths``; without it bytes are not counted.
        sequence_length: T; 0 for the model's own.
        batch_size: Windows at a time.
        max_tokens: Predict only so many tokens; 0 for all.
        on_progress: Told the number of tokens after each batch.

    Raises:
        DataError: Fewer than two tokens, or an id outside the vocabulary.
    """
    length = sequence_length or config.max_sequence_length
    if not 1 <= length <= config.max_sequence_length:
        raise DataError(
            f"sequence_length is {length}, the model's context holds {config.max_sequence_length:,} tokens",
            fix=f"Choose 1 to {config.max_sequence_length}.",
        )
    num_targets = len(tokens) - 1
    if max_tokens:
        num_targets = min(num_targets, max_tokens)
    if num_targets < 1:
        raise DataError(f"the text has {len(tokens)} tokens; predicting needs at least two", fix="Add text.")

    def batches() -> Iterator[Predictions]:
        for begin, rows, width in _batches(num_targets, length, batch_size):
            piece = np.asarray(tokens[begin : begin + rows * width + 1], dtype=np.int64)
            require_token_ids(
                piece, config.vocab_size, place=lambda at, first=begin: f"position {first + at}"
            )
            yield predictions(np.array(sliding_window_view(piece, width + 1)[::width]))

    with evaluating(model), torch.no_grad():
        losses = functools.partial(batch_loss, model, config.vocab_size)
        return _evaluation(losses, batches(), byte_lengths, on_progress)


def perplexity_of_samples(
    summed_loss: SummedLoss,
    vocab_size: int,
    samples: Samples,
    *,
    num_samples: int = 0,
    mask_documents: bool = False,
    byte_lengths: npt.NDArray[np.int64] | None = None,
    batch_size: int = 8,
    on_progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Predicts what a model is trained to predict, in the first samples in file order.

    Args:
        summed_loss: The model, in evaluation mode.
        vocab_size: Its true vocabulary.
        samples: A split, or a mixture of several sources' splits.
        num_samples: Samples to take, at most those of one epoch; 0 for all of these.
        mask_documents: Predict each token from its own document alone, and no document's first.
        byte_lengths: [vocabulary] int64, from ``token_byte_lengths``; without it bytes are not counted.
        batch_size: Samples at a time.
        on_progress: Told the number of tokens after each batch.

    Raises:
        DataError: An id is outside the vocabulary, or there is nothing to predict.
    """
    total = min(num_samples or samples.num_samples, samples.num_samples)

    def batches() -> Iterator[Predictions]:
        for first in range(0, total, batch_size):
            count = min(batch_size, total - first)
            yield read_predictions(
                samples, first, count, vocab_size=vocab_size, ordered=True, mask_documents=mask_documents
            )

    return _evaluation(summed_loss, batches(), byte_lengths, on_progress)


def _evaluation(
    summed_loss: SummedLoss,
    batches: Iterable[Predictions],
    byte_lengths: npt.NDArray[np.int64] | None,
    on_progress: Callable[[int], None] | None,
) -> Evaluation:
    total_loss, num_tokens, num_bytes = 0.0, 0, 0
    for batch in batches:
        total_loss += summed_loss(batch)
        targets = batch.targets_BT[batch.targets_BT != PADDING]
        num_tokens += len(targets)
        if byte_lengths is not None:
            num_bytes += int(byte_lengths[targets].sum())
        if on_progress:
            on_progress(len(targets))
    if num_tokens == 0:
        raise DataError(
            "there is nothing to predict: each document has one token",
            fix="Add text, or let attention cross documents.",
        )
    return Evaluation(total_loss=total_loss, num_tokens=num_tokens, num_bytes=num_bytes)


def token_byte_lengths(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Counts the bytes of text that each id stands for, int64 [vocab_size]; 0 for special tokens."""
    return np.array([len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)], dtype=np.int64)


def unigram_entropy(tokens: Tokens) -> float:
    """Computes the entropy of the tokens' frequencies in nats a token: the loss of knowing only these.

    Raises:
        DataError: There are no tokens.
    """
    if len(tokens) == 0:
        raise DataError("there are no tokens to count", fix="Add text.")
    counts = np.zeros(0, dtype=np.int64)
    for begin in range(0, len(tokens), _CHUNK):
        found = np.bincount(tokens[begin : begin + _CHUNK], minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    shares = counts[counts > 0] / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def _batches(num_targets: int, length: int, batch_size: int) -> Iterator[tuple[int, int, int]]:
    """Yields first token, rows and width of each batch: whole windows, then the rest as one row."""
    whole = num_targets // length
    for window in range(0, whole, batch_size):
        yield window * length, min(batch_size, whole - window), length
    if rest := num_targets % length:
        yield whole * length, 1, rest


def batch_loss(model: nn.Module, vocab_size: int, batch: Predictions) -> float:
    """The summed loss of a batch; fp32 logits are held for one chunk of tokens at a time."""
    device = next(model.parameters()).device
    tokens_BT, targets_BT, positions_BT, documents_BT = (
        None if array is None else torch.from_numpy(array).to(device)
        for array in (batch.tokens_BT, batch.targets_BT, batch.positions_BT, batch.documents_BT)
    )
    assert targets_BT is not None, "every batch has them"
    hidden_MD = model(tokens_BT, positions_BT=positions_BT, documents_BT=documents_BT).flatten(0, 1)
    rows = max(1, _LOGITS_BYTES // (4 * vocab_size))
    total = torch.zeros((), dtype=torch.float64, device=hidden_MD.device)
    for hidden_CD, targets_C in zip(
        torch.split(hidden_MD, rows), torch.split(targets_BT.flatten(), rows), strict=True
    ):
        logits_CV = lm_head(model, hidden_CD, vocab_size)
        losses_C = cross_entropy(logits_CV, targets_C, reduction="none", ignore_index=PADDING)
        total += losses_C.double().sum()
    return total.item()
