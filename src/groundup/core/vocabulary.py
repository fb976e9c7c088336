"""The padded size of a vocabulary, on which models and tokenizers must agree."""

VOCAB_MULTIPLE = 128
"""Vocabularies are padded to a multiple of this, as Megatron-LM does, for the matrix units' sake."""


def padded_vocab_size(vocab_size: int, multiple: int = VOCAB_MULTIPLE) -> int:
    """The least multiple that holds the vocabulary: the number of rows of an embedding."""
    return -(-vocab_size // multiple) * multiple
