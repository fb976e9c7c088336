import numpy as np
import pytest

from groundup.core.errors import DataError
from groundup.tokens.tokenizer.bpe import (
    ByteLevelBpe,
    ByteLevelTokenizer,
    byte_characters,
    to_bytes,
    whole_text,
)


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
