import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.bpe import ByteLevelBpe, ByteLevelTokenizer, byte_characters
from groundup.tokens.tokenizer.bpe_merges import Merge, last_pair, merges_as_ranks, merges_of, ranked_merges
from groundup.tokens.tokenizer.gpt2 import GPT2_FINGERPRINT

LETTERS = byte_characters()


def _bpe(merges: list[Merge], extra: list[str], whole_pieces: bool) -> ByteLevelBpe:
    names = dict.fromkeys([*LETTERS, *(left + right for left, right in merges), *extra])
    vocab = {name: number for number, name in enumerate(names)}
    return ByteLevelBpe(
        vocab=vocab, merges=merges, specials={"<|endoftext|>": len(vocab)}, whole_pieces=whole_pieces
    )


def _by_pairs(bpe: ByteLevelBpe) -> tokenizers.Tokenizer:
    """The reference: joins pairs, as GPT-2's encoder does."""
    reference = tokenizers.Tokenizer(
        models.BPE(vocab=dict(bpe.vocab), merges=list(bpe.merges), ignore_merges=bpe.whole_pieces)
    )
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return reference


def _random_merges(chance: random.Random) -> list[Merge]:
    # Random merges over two letters, far nastier than learned ones: overlaps, repeats, dead ends.
    tokens = ["a", "b"]
    merges: list[Merge] = []
    for _ in range(chance.randint(1, 12)):
        left, right = chance.choice(tokens), chance.choice(tokens)
        merges.append((left, right))
        tokens.append(left + right)
    return merges


def _words(chance: random.Random) -> list[str]:
    return ["".join(chance.choice("ab") for _ in range(chance.randint(1, 40))) for _ in range(20)]


@given(seed=st.integers(0, 10**9))
@settings(max_examples=300, deadline=None)
def test_merges_that_are_kept_encode_as_pairs_do(seed: int) -> None:
    chance = random.Random(seed)
    bpe = _bpe(ranked_merges(_random_merges(chance), LETTERS), [], False)
    ours = ByteLevelTokenizer(bpe, end_of_document="<|endoftext|>")
    reference = _by_pairs(bpe)
    for word in _words(chance):
        assert ours.encode(word) == reference.encode(word).ids, (bpe.merges, word)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=300, deadline=None)
def test_lists_with_repeats_encode_as_pairs_do(seed: int) -> None:
    chance = random.Random(seed)
    listed = _random_merges(chance)
    kept = merges_as_ranks(listed, LETTERS)
    made = {left + right for left, right in listed}
    whole_pieces = chance.random() < 0.5
    if kept is None or (len(kept) < len(made) and not whole_pieces):
        return
    bpe = _bpe(kept, sorted(made), whole_pieces)
    ours = ByteLevelTokenizer(bpe, end_of_document="<|endoftext|>")
    reference = _by_pairs(_bpe(listed, [], whole_pieces))
    for word in _words(chance):
        expected = [reference.id_to_token(number) for number in reference.encode(word).ids]
        assert [ours.decode([number]) for number in ours.encode(word)] == expected, (listed, word)


@pytest.mark.parametrize(
    "merges",
    [
        [("a", "b"), ("b", "c"), ("a", "bc")],  # abc always arrives as ab, c
        [("ab", "c")],  # ab is nothing
    ],
)
def test_sees_merges_that_are_not_ranks(merges: list[Merge]) -> None:
    assert ranked_merges(merges, LETTERS) != merges
    kept = merges_as_ranks(merges, LETTERS)
    assert kept is None or len(kept) < len(merges)


@pytest.mark.parametrize(
    "merges",
    [
        [("a", "b"), ("ab", "c"), ("ab", "ab")],
        [("a", "a"), ("aa", "a")],
        [("c", "d"), ("ab", "cd"), ("a", "b")],  # a token from a later one, as Llama 3 has
    ],
)
def test_accepts_merges_that_are(merges: list[Merge]) -> None:
    assert merges_as_ranks(merges, LETTERS) == merges


def test_of_several_merges_of_a_token_only_the_last_pair_counts() -> None:
    listed = [("a", "b"), ("a", "bc"), ("ab", "c"), ("b", "c")]
    assert merges_as_ranks(listed, LETTERS) == [("a", "b"), ("ab", "c"), ("b", "c")]
    assert merges_as_ranks([("a", "b"), ("a", "bc"), ("b", "c")], LETTERS) is None


def test_the_leftmost_two_of_equal_rank_join_first() -> None:
    assert last_pair("aaa", {"aa": 0, "aaa": 1}) == ("aa", "a")
    assert not ranked_merges([("a", "aa")], LETTERS)


def test_tokens_that_joining_never_makes_have_no_merge() -> None:
    assert merges_of({"a": 3, "b": 4, "c": 5, "d": 6, "ab": 2, "abcd": 1, "xy": 0}) == [("a", "b")]


def test_gpt2_needs_no_proof_at_run_time(gpt2: Tokenizer) -> None:
    assert isinstance(gpt2, ByteLevelTokenizer)
    assert gpt2.fingerprint == GPT2_FINGERPRINT
    assert merges_as_ranks(gpt2.bpe.merges, LETTERS) == gpt2.bpe.merges
