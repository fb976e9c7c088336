"""Tokens added to GPT-2's two files have the ids that ``transformers`` gives them."""

import json
from pathlib import Path
from typing import Any

import pytest

from groundup.core.errors import DataError
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from tests.tiny import END, tiny_tokenizer

NAMES = {"<|im_start|>": 300, "<|im_end|>": 301}


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as slow tokenizers save it, without a ``tokenizer.json``."""
    tiny_tokenizer().save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    write(tmp_path, "added_tokens.json", NAMES)
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>"})
    return tmp_path


@pytest.mark.parametrize("where", ["added_tokens.json", "tokenizer_config.json"])
def test_added_tokens_are_special(where: str, folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    if where == "tokenizer_config.json":
        settings = json.loads((folder / where).read_text())
        decoder = {str(number): {"content": name, "special": True} for name, number in NAMES.items()}
        write(folder, where, {**settings, "added_tokens_decoder": decoder})
        (folder / "added_tokens.json").unlink()
    tokenizer = load_tokenizer(folder)
    assert tokenizer.special_tokens == {END: 299, **NAMES}
    assert (tokenizer.vocab_size, tokenizer.end_of_document_id) == (302, 301)
    text = "the <|im_start|> tide"
    assert tokenizer.encode(text) == tiny_tokenizer().encode(text)  # specials in a text are ordinary text
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert (again.fingerprint, again.end_of_document_id) == (tokenizer.fingerprint, 301)
    for place in (folder, tmp_path / "saved"):
        theirs = transformers.AutoTokenizer.from_pretrained(place)
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ids == [*tokenizer.encode("the "), 300, *tokenizer.encode(" tide")]
        assert theirs.eos_token_id == 301


def test_those_of_ordinary_text_are_matched_in_it(folder: Path) -> None:
    decoder = {
        "300": {"content": "tide", "special": False},
        "301": {"content": "<|im_end|>", "special": True},
    }
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": decoder})
    (folder / "added_tokens.json").unlink()
    tokenizer = load_tokenizer(folder)
    plain = tiny_tokenizer()
    assert tokenizer.encode("the tide<|im_end|>") == [*plain.encode("the "), 300, *plain.encode("<|im_end|>")]
    assert tokenizer.special_tokens == {END: 299, "<|im_end|>": 301}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"<|im_end|>": 5}, r"'<\|im_end\|>' has the id 5, which is that of"),
        ({END: 300}, r"the id 300, in the vocabulary it is 299"),
        ({"<|im_end|>": "x"}, r"added_tokens\.json: its added tokens are not tokens with ids"),
        ([1], r"added_tokens\.json: its added tokens are not tokens with ids"),
    ],
)
def test_what_contradicts_the_vocabulary_is_refused(content: Any, message: str, folder: Path) -> None:
    write(folder, "added_tokens.json", content)
    with pytest.raises(DataError, match=message):
        load_tokenizer(folder)
