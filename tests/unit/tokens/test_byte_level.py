import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from groundup.tokens.byte_level import (
    ByteLevelBpe,
    ByteLevelTokenizer,
    byte_characters,
    merges_are_ranks,
    ranked_merges,
    to_bytes,
)


def _bpe(merges: list[tuple[str, str]]) -> ByteLevelBpe:
    names = dict.fromkeys([*byte_characters(), *(left + right for left, right in merges)])
    vocab = {name: number for number, name in enumerate(names)}
    return ByteLevelBpe(vocab=vocab, merges=merges, specials={"<|endoftext|>": len(vocab)})


def _by_pairs(bpe: ByteLevelBpe) -> tokenizers.Tokenizer:
    """The reference: joins pairs, as GPT-2's encoder does."""
    reference = tokenizers.Tokenizer(models.BPE(vocab=dict(bpe.vocab), merges=list(bpe.merges)))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return reference


def test_every_byte_has_a_character() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert [to_bytes(character) for character in characters] == [bytes([byte]) for byte in range(256)]
    assert to_bytes("Ġthe") == b" the"
    assert to_bytes(" ") is None


@given(seed=st.integers(0, 10**9))
@settings(max_examples=300, deadline=None)
def test_ranked_merges_encode_as_pairs_do(seed: int) -> None:
    # Random merges over two letters, far nastier than learned ones: overlaps, repeats, dead ends.
    chance = random.Random(seed)
    tokens = ["a", "b"]
    merges: list[tuple[str, str]] = []
    for _ in range(chance.randint(1, 12)):
        left, right = chance.choice(tokens), chance.choice(tokens)
        merges.append((left, right))
        tokens.append(left + right)
    bpe = _bpe(ranked_merges(merges))
    ours = ByteLevelTokenizer(bpe, end_of_document="<|endoftext|>")
    reference = _by_pairs(bpe)
    for _ in range(20):
        text = "".join(chance.choice("ab") for _ in range(chance.randint(1, 40)))
        assert ours.encode(text) == reference.encode(text).ids, (merges, text)


@pytest.mark.parametrize(
    "merges",
    [
        [("a", "b"), ("b", "c"), ("a", "bc")],  # abc always arrives as ab, c
        [("a", "b"), ("ab", "c"), ("b", "c"), ("a", "bc")],  # abc twice
        [("ab", "c")],  # ab is nothing
    ],
)
def test_sees_merges_that_are_not_ranks(merges: list[tuple[str, str]]) -> None:
    assert not merges_are_ranks(merges)


def test_accepts_merges_that_are() -> None:
    assert merges_are_ranks([("a", "b"), ("ab", "c"), ("ab", "ab")])
    assert merges_are_ranks([("a", "a"), ("aa", "a")])
    assert not merges_are_ranks([("a", "a"), ("a", "aa")])  # the leftmost two join first
