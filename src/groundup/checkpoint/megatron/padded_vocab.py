"""Megatron-LM's padding of the vocabulary, and the true size that it hides."""

from groundup.core.errors import CheckpointError
from groundup.core.vocabulary import padded_vocab_size

DEFAULT_MULTIPLE = 128


def padded_rows(vocab_size: int, tp: int, multiple: int = DEFAULT_MULTIPLE) -> int:
    """Rows of the embedding: the least multiple of ``multiple`` times ``tp`` that holds the vocabulary.

    Source: ``_vocab_size_with_padding`` in megatron/tokenizer/tokenizer.py, --make-vocab-size-divisible-by.
    """
    return padded_vocab_size(vocab_size, multiple * tp)


def true_vocab_size(
    *, rows: int, tp: int, multiple: int, tokenizer_size: int, stated: int | None, where: object
) -> int:
    """The vocabulary without padding.

    Args:
        rows: Of the stored embedding.
        tp: Degree of tensor parallelism with which it was padded.
        multiple: With which it was padded.
        tokenizer_size: Ids of the tokenizer.
        stated: What the user or the checkpoint says it is.
        where: The checkpoint.

    Raises:
        CheckpointError: The tokenizer cannot be the one of the model, or the stated size does not fit.
    """
    if stated is not None:
        if not tokenizer_size <= stated <= rows:
            raise CheckpointError(
                f"a vocabulary of {stated:,} ids must hold the tokenizer's {tokenizer_size:,} ids and fit"
                f" into the {rows:,} rows of the embedding",
                where=where,
                fix="Name the model's own tokenizer (--tokenizer), or its true vocabulary (--vocab-size).",
            )
        return stated
    # A converted checkpoint may keep the padding of another tp: the tools of Megatron-LM do so.
    paddings = {tokenizer_size} | {padded_rows(tokenizer_size, other, multiple) for other in {1, tp, 2, 4, 8}}
    if rows not in paddings:
        raise CheckpointError(
            f"its embedding has {rows:,} rows, a tokenizer of {tokenizer_size:,} ids would make"
            f" {padded_rows(tokenizer_size, tp, multiple):,} (a multiple of {multiple} x {tp})",
            where=where,
            fix="Name the model's own tokenizer (--tokenizer), or its true vocabulary (--vocab-size).",
        )
    return tokenizer_size
