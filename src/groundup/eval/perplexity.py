"""Measures how well a model predicts a text: loss, perplexity, bits per byte.

Shapes: B samples, T tokens of a sample or window.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from torch import nn

from groundup.core.errors import DataError
from groundup.core.vocabulary import require_token_ids
from groundup.eval.scoring import Score, loglikelihood, windows
from groundup.models import ModelConfig
from groundup.tokens.dataset.token_source import Tokens
from groundup.tokens.sampling.collate import Evaluation
from groundup.tokens.tokenizer.base import Tokenizer

_CHUNK = 1 << 22
_WINDOWS = 64
"""So many are held in memory at a time."""


def perplexity(
    model: nn.Module,
    config: ModelConfig,
    tokens: Tokens,
    *,
    byte_lengths: npt.NDArray[np.int64] | None = None,
    sequence_length: int = 0,
    stride: int = 0,
    batch_size: int = 0,
    max_tokens: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Predicts every token but the first, in windows over the text.

    A window of T tokens is predicted from the one token before it and from itself; the last window may
    be shorter. With a stride below T windows overlap: a token is predicted from at least T - stride tokens.
    Each token is predicted exactly once, and the batch size does not matter.

    Args:
        model: On its device; in evaluation mode while it is measured.
        config: Its architecture.
        tokens: [num_tokens], any integer dtype, memory-mapped or not.
        byte_lengths: [vocabulary] int64, from ``token_byte_lengths``; without it bytes are not counted.
        sequence_length: T; 0 for the model's own.
        stride: Tokens by which windows advance; 0 for T.
        batch_size: Windows at a time; 0 for as many as are fast and fit into memory.
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
    if not 0 <= stride <= length:
        raise DataError(f"stride is {stride}, a window has {length:,} tokens", fix=f"Choose 1 to {length}.")
    num_targets = len(tokens) - 1
    if max_tokens:
        num_targets = min(num_targets, max_tokens)
    if num_targets < 1:
        raise DataError(f"the text has {len(tokens)} tokens; predicting needs at least two", fix="Add text.")

    total_loss, num_bytes = 0.0, 0

    def add(scores: Sequence[Score]) -> None:
        nonlocal total_loss
        total_loss -= sum(score.logprob for score in scores)
        if on_progress:
            on_progress(sum(score.num_tokens for score in scores))

    require_token_ids(np.asarray(tokens[:1]), config.vocab_size, place=lambda _: "position 0")
    requests, predicted = windows(tokens, length, stride or length, num_targets), 1
    while some := list(itertools.islice(requests, _WINDOWS)):
        for request in some:
            ids = request.continuation
            require_token_ids(
                ids, config.vocab_size, place=lambda at, first=predicted: f"position {first + at}"
            )
            predicted += len(ids)
            num_bytes += int(byte_lengths[ids].sum()) if byte_lengths is not None else 0
        loglikelihood(model, config, some, batch_size=batch_size, on_progress=add)
    return Evaluation(total_loss=total_loss, num_tokens=num_targets, num_bytes=num_bytes)


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
