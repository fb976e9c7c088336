"""Requests of text, tokenized as EleutherAI's lm-evaluation-harness does."""

from collections.abc import Iterator

import numpy as np

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.errors import DataError
from groundup.eval.scoring import Request


class UnscorableError(DataError):
    """A continuation that the model cannot score: it has no tokens, or more than the context holds."""


def text_request(loaded: LoadedModel, context: str, continuation: str, *, where: object = "") -> Request:
    """Tokenizes context and continuation together, as EleutherAI's harness does.

    Blanks at the end of the context count as the continuation's beginning; an empty context is the begin
    token, or else the end of a document.

    Args:
        loaded: Model and tokenizer.
        context: What stands before.
        continuation: With the blank that separates it from the context.
        where: The item, named in errors.

    Raises:
        UnscorableError: The continuation has no tokens, or more than the model's context holds.
    """
    before = context.rstrip()
    after = context[len(before) :] + continuation
    encode = loaded.tokenizer.encode
    if before:
        known = [*loaded.bos_ids, *encode(before)]
        wanted = [*loaded.bos_ids, *encode(before + after)][len(known) :]
    else:
        known, wanted = [loaded.bos_id], encode(after)
    longest = loaded.config.max_sequence_length
    if not wanted:
        raise UnscorableError(
            f"the continuation {continuation!r} has no tokens",
            where=where,
            fix="Mend the item or leave it out.",
        )
    if len(wanted) > longest:
        raise UnscorableError(
            f"the continuation has {len(wanted):,} tokens, the model's context holds {longest:,}",
            where=where,
            fix="Leave the item out.",
        )
    return Request(np.array(known, np.int64), np.array(wanted, np.int64), len(continuation.encode()))


def rolling_requests(loaded: LoadedModel, text: str) -> Iterator[Request]:
    """Yields requests that predict each token of a text once, the first from what begins a text.

    Windows do not overlap, but for the last, which has a whole context.
    """
    ids = np.array([loaded.bos_id, *loaded.tokenizer.encode(text)], np.int64)
    length, total = loaded.config.max_sequence_length, len(ids) - 1
    for done in range(0, total, length):
        end = min(done + length, total)
        yield Request(ids[max(0, end - length) : done + 1], ids[done + 1 : end + 1])
