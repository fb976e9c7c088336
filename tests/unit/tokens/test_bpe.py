import random

import numpy as np
import pytest
import tiktoken

from groundup.core.errors import DataError
from groundup.tokens.tokenizer.bpe import (
    GPT2_PATTERN,
    ByteLevelBpe,
    ByteLevelTokenizer,
    byte_characters,
    quick_pattern,
    to_bytes,
    whole_text,
)
from groundup.tokens.tokenizer.tiktoken import CL100K_PATTERN, O200K_PATTERN

_CHARACTERS = "aAzé漢字1٣²½ \t\n\r\x0b\x1c\x85\xa0\u2028\u3000\u200bsrtvemdlLI'!?.,/-_\u0301\U0001f600\u01c5ʰ"


@pytest.mark.parametrize("pattern", [GPT2_PATTERN, CL100K_PATTERN, O200K_PATTERN])
def test_the_quick_pattern_cuts_as_the_pattern_does(pattern: str) -> None:
    quick = quick_pattern(pattern)
    assert quick != pattern
    chance = random.Random(1)
    texts = ["".join(chance.choices(_CHARACTERS, k=chance.randrange(1, 12))) for _ in range(2_000)]
    assert _pieces(quick, texts) == _pieces(pattern, texts)


def test_a_million_spaces_at_the_end_of_a_text_need_no_backtracking() -> None:
    alphabet = {character: byte for byte, character in enumerate(byte_characters())}
    bpe = ByteLevelBpe(vocab={**alphabet, "ĠĠ": 256}, merges=[("Ġ", "Ġ")], specials={"<|endoftext|>": 257})
    tokenizer = ByteLevelTokenizer(bpe, end_of_document="<|endoftext|>")
    assert tokenizer.encode_array("a" + " " * 1_100_000).tolist() == [ord("a"), *[256] * 550_000]


def test_a_pattern_of_another_form_stays_as_it_is() -> None:
    for pattern in (r"\w+|\s+", rf"(?m){GPT2_PATTERN}", rf"(?:{GPT2_PATTERN})"):
        assert quick_pattern(pattern) == pattern


def _pieces(pattern: str, texts: list[str]) -> list[list[bytes]]:
    """What tiktoken cuts texts into: with every part of them a token, each piece is one."""
    parts = {bytes([byte]): None for byte in range(256)}
    for text in texts:
        ends = range(1, len(text) + 1)
        parts |= {text[begin:end].encode(): None for end in ends for begin in range(end)}
    ranks = {part: rank for rank, part in enumerate(parts)}
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return [encoding.decode_tokens_bytes(encoding.encode_ordinary(text)) for text in texts]


def test_every_byte_has_a_character() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert [to_bytes(character) for character in characters] == [bytes([byte]) for byte in range(256)]
    assert to_bytes("Ġthe") == b" the"
    assert to_bytes(" ") is None


def test_bytes_are_their_own_ids() -> None:
    alphabet = {character: byte for byte, character in enumerate(byte_characters())}
    bpe = ByteLevelBpe(vocab=alphabet, merges=[], specials={"<|endoftext|>": 256})
    tokenizer = ByteLevelTokenizer(bpe, end_of_document="<|endoftext|>")
    text = "naïve 你\n\0"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.encode_array(text).tolist() == list(text.encode())
    assert tokenizer.encode_array(text).dtype == np.uint32
    assert tokenizer.encode_array("a\ud800").tolist() == [ord("a"), *"\ufffd".encode()]
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.end_of_document_id) == ("bytes", 257, 256)


def test_gaps_between_ids_stand_for_nothing() -> None:
    alphabet = {character: byte for byte, character in enumerate(byte_characters())}
    bpe = ByteLevelBpe(vocab=alphabet, merges=[], specials={"<|endoftext|>": 300})
    tokenizer = ByteLevelTokenizer(bpe, end_of_document="<|endoftext|>")
    assert [tokenizer.token_bytes(number) for number in (65, 256, 300)] == [b"A", b"", b""]
    for number in (-1, 301):
        with pytest.raises(DataError, match="outside the vocabulary of 301 ids"):
            tokenizer.token_bytes(number)


def test_what_utf8_cannot_express_is_replaced() -> None:
    assert whole_text("a\ud800b") == "a\ufffdb"
    assert whole_text("\ud83d\ude00") == "\U0001f600"
    assert whole_text("你好") == "你好"
