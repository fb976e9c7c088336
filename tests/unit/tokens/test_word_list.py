"""Tokenizers of characters and of bare ids: what they say, keep and refuse, here and in tokenizers."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from groundup.core.errors import DataError
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.tokens.tokenizer.word_list import WordListTokenizer, end_ids, integers

CHARACTERS = WordListTokenizer("characters", "\n !azé漢🙂\u2028")
TEXT = "a z!\n\né漢🙂 \u2028a"
IDS = [3, 1, 4, 2, 0, 0, 5, 6, 7, 1, 8, 3]


def test_characters_are_their_places() -> None:
    assert CHARACTERS.encode(TEXT) == IDS
    assert CHARACTERS.encode_array(TEXT).dtype == np.uint32
    assert CHARACTERS.decode(IDS) == TEXT
    assert b"".join(map(CHARACTERS.token_bytes, IDS)).decode() == TEXT
    assert (CHARACTERS.encode(""), CHARACTERS.decode([])) == ([], "")
    assert CHARACTERS.special_tokens == {}
    assert (CHARACTERS.end_of_document_id, end_ids(CHARACTERS)) == (0, ())
    assert WordListTokenizer("characters", "ba").end_of_document_id == 0


def test_bare_ids_are_numbers_with_spaces() -> None:
    ids = load_tokenizer("none:300")
    assert ids.encode(" 5 0\n299\t017") == [5, 0, 299, 17]
    assert ids.decode([5, 0, 299]) == "5 0 299"
    assert b"".join(map(ids.token_bytes, [5, 0, 299])) == b" 5 0"
    assert ids.special_tokens == {"299": 299}
    assert (ids.vocab_size, ids.end_of_document_id, end_ids(ids)) == (300, 299, (299,))
    assert end_ids(integers(300, end_of_document_id=7)) == (7,)


@pytest.mark.parametrize("saved", [CHARACTERS, integers(70), integers(70, end_of_document_id=3)])
def test_what_is_saved_is_read_again_and_by_others(saved: WordListTokenizer, tmp_path: Path) -> None:
    saved.save(tmp_path)
    found = load_tokenizer(tmp_path)
    assert isinstance(found, WordListTokenizer)
    assert (found.fingerprint, found.words) == (saved.fingerprint, saved.words)
    assert found.end_of_document_id == saved.end_of_document_id
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text, ids = (TEXT, IDS) if saved.kind == "characters" else ("5 0 69 17 3", [5, 0, 69, 17, 3])
    assert theirs.encode(text).ids == saved.encode(text) == ids
    assert theirs.decode(ids, skip_special_tokens=False) == text == saved.decode(ids)
    with pytest.raises(Exception, match="Missing \\[UNK\\] token"):
        theirs.encode("a 漢字" if saved.kind == "characters" else "70")


def test_fingerprints_tell_them_apart(tmp_path: Path) -> None:
    kinds = [integers(70), integers(71), integers(70, end_of_document_id=3), CHARACTERS,
             WordListTokenizer("characters", "\n !az"), WordListTokenizer("characters", "0123")]  # fmt: skip
    assert len({one.fingerprint for one in kinds}) == len(kinds)


def test_another_list_of_words_is_left_to_the_library(tmp_path: Path) -> None:
    document = CHARACTERS.document()
    document["added_tokens"] = integers(70).document()["added_tokens"]
    document["model"]["vocab"]["69"] = 9
    document["added_tokens"][0]["id"] = 9
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "69"}')
    found = load_tokenizer(tmp_path)
    assert not isinstance(found, WordListTokenizer)
    assert found.encode(TEXT) == IDS


@pytest.mark.parametrize(
    ("tokenizer", "text", "message"),
    [
        (CHARACTERS, "azb", "the character 'b' is not among the 9 of the vocabulary"),
        (CHARACTERS, "a\ud800", r"the character '\\ud800' is not among"),
        (integers(70), "5 70", "token 70 is outside the vocabulary of 70 ids"),
        (integers(70), "5 " + "9" * 5000, "is outside the vocabulary of 70 ids"),
        (integers(70), "5 -1", "'-1' is no token id"),
        (integers(70), "5 ٣", "'٣' is no token id"),
        (integers(70), "the cat", "'the' is no token id. There is no tokenizer but the ids themselves"),
    ],
)
def test_what_is_not_in_the_vocabulary_is_refused(
    tokenizer: WordListTokenizer, text: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        tokenizer.encode(text)


@pytest.mark.parametrize(
    "name", ["none", "none:", "none:x", "none:0", "none:-5", "none:999999999", "NullTokenizer"]
)
def test_a_name_without_a_size_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"Say how many ids there are.*none:50257"):
        load_tokenizer(name)
