"""Tokenizers that are a list of words, each with its place as its id: nanoGPT's characters, bare integers.

A text of integers is the ids themselves, separated by spaces, as Megatron-LM's NullTokenizer has it: data and
models whose ids mean nothing that is known here. Both are saved as a ``tokenizer.json`` that
``transformers.AutoTokenizer`` reads too.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from groundup.core.errors import DataError
from groundup.core.files import atomic_write, write_json
from groundup.core.manifest import fingerprint
from groundup.core.vocabulary import not_in_vocabulary
from groundup.tokens.tokenizer.base import Tokenizer

WordKind = Literal["characters", "integers"]
_SPLITS: Mapping[WordKind, Mapping[str, Any]] = {
    "characters": {
        "type": "Split",
        "pattern": {"Regex": r"[\s\S]"},
        "behavior": "Isolated",
        "invert": False,
    },
    "integers": {"type": "WhitespaceSplit"},
}
_MOST = 1 << 24  # integers: beyond any vocabulary
_NEWLINE = "\n"


class WordListTokenizer:
    """A ``Tokenizer`` of characters or of integers.

    Args:
        kind: Which.
        words: In the order of their ids; for integers their decimal numbers from 0 on.
        end_of_document_id: The id that closes a document. Among characters it is text as all others are: by
            default the line's end, or the first character where that is none; it ends no text.
    """

    def __init__(
        self, kind: WordKind, words: Sequence[str], *, end_of_document_id: int | None = None
    ) -> None:
        self._kind = kind
        self.words = tuple(words)
        self.vocab_size = len(self.words)
        default = self.words.index(_NEWLINE) if _NEWLINE in self.words else 0
        if kind == "integers":
            default = self.vocab_size - 1
        self.end_of_document_id = default if end_of_document_id is None else end_of_document_id

    @property
    def kind(self) -> WordKind:
        """What sort of tokenizer it is, in words."""
        return self._kind

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Name -> id of the tokens that stand for no text: of integers the end of a document."""
        if self._kind == "characters":
            return {}
        return {self.words[self.end_of_document_id]: self.end_of_document_id}

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the words and the end of a document."""
        words = list(self.words) if self._kind == "characters" else self.vocab_size
        return fingerprint([self._kind, words, self.end_of_document_id])

    @functools.cached_property
    def _by_code(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """The characters' code points in ascending order, and the id of each."""
        codes = np.array([ord(word) for word in self.words], np.uint32)
        order = np.argsort(codes).astype(np.uint32)
        return codes[order], order

    def encode(self, text: str) -> list[int]:
        """The ids of a text.

        Raises:
            DataError: A character or a number is not in the vocabulary.
        """
        ids: list[int] = self.encode_array(text).tolist()
        return ids

    def encode_array(self, text: str) -> npt.NDArray[np.uint32]:
        """The ids of a text as uint32 [num_tokens].

        Raises:
            DataError: As ``encode``.
        """
        if self._kind == "integers":
            return np.array([self._number(word) for word in text.split()], np.uint32)
        codes, ids = self._by_code
        wanted = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        places = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
        if (missing := codes[places] != wanted).any():
            raise DataError(
                f"the character {text[int(missing.argmax())]!r} is not among the {self.vocab_size} of the"
                " vocabulary",
                fix="Leave it out: a vocabulary of characters has those of its training text alone.",
            )
        return ids[places]

    def _number(self, word: str) -> int:
        if not (word.isascii() and word.isdecimal()):
            raise DataError(
                f"{word[:40]!r} is no token id",
                fix="There is no tokenizer but the ids themselves: write numbers with spaces between them.",
            )
        if len(word) > len(str(_MOST)) or int(word) >= self.vocab_size:
            raise not_in_vocabulary(int(word[:20]), self.vocab_size)
        return int(word)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return ("" if self._kind == "characters" else " ").join(self.words[number] for number in ids)

    def token_bytes(self, id: int) -> bytes:  # noqa: A002  # the protocol's name
        """The bytes of text that an id stands for, of a number with a space; none for a special token."""
        if not 0 <= id < self.vocab_size:
            raise not_in_vocabulary(id, self.vocab_size)
        if self._kind == "characters":
            return self.words[id].encode("utf-8", "replace")
        return b"" if id == self.end_of_document_id else f" {self.words[id]}".encode()

    def document(self) -> dict[str, Any]:
        """Returns the content of a ``tokenizer.json``."""
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": number, "content": word, **flags} for word, number in self.special_tokens.items()
            ],
            "normalizer": None,
            "pre_tokenizer": _SPLITS[self._kind],
            "post_processor": None,
            "decoder": {"type": "Fuse"} if self._kind == "characters" else None,
            "model": {
                "type": "WordLevel",
                "vocab": {word: number for number, word in enumerate(self.words)},
                "unk_token": "",  # there is none: what is not in the vocabulary is an error there too
            },
        }

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.json`` and ``tokenizer_config.json``."""
        with atomic_write(folder / "tokenizer.json") as file:
            file.write(orjson.dumps(self.document(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        ends = [*self.special_tokens]
        named = {"bos_token": ends[0], "eos_token": ends[0]} if ends else {}
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **named,
        }
        write_json(folder / "tokenizer_config.json", settings)


def integers(size: int, *, end_of_document_id: int | None = None) -> WordListTokenizer:
    """The tokenizer of ids that mean nothing: ``size`` of them, of which the last ends a document."""
    return WordListTokenizer("integers", list(map(str, range(size))), end_of_document_id=end_of_document_id)


def named_integers(name: str) -> WordListTokenizer:
    """The tokenizer of ``none:SIZE``.

    Raises:
        DataError: The size is no number of ids.
    """
    size = name.partition(":")[2]
    if not (size.isascii() and size.isdecimal() and len(size) < 9 and 0 < int(size) <= _MOST):
        raise DataError(
            f"{size!r} is no size of a vocabulary" if size else "does not say how many ids there are",
            where=name,
            fix="Say how many ids there are, without padding: none:50257, say.",
        )
    return integers(int(size))


def read_word_list(document: Mapping[str, Any]) -> WordListTokenizer | None:
    """Reads what ``WordListTokenizer.save`` wrote; None when a ``tokenizer.json`` is anything else."""
    kind = next((kind for kind in _SPLITS if document.get("pre_tokenizer") == _SPLITS[kind]), None)
    entries = document["model"].get("vocab")
    if kind is None or document["model"].get("type") != "WordLevel" or not isinstance(entries, dict):
        return None
    words = sorted(entries, key=lambda word: entries[word])
    ends = [token["id"] for token in document.get("added_tokens") or ()]
    found = WordListTokenizer(kind, words, end_of_document_id=ends[0] if ends else None)
    same = words and found.document() == document
    is_numbered = kind == "characters" or words == list(map(str, range(len(words))))
    return found if same and is_numbered and (kind == "integers" or max(map(len, words)) == 1) else None


def end_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids by which a tokenizer ends a text: none of a vocabulary of characters, which are all text."""
    only_text = isinstance(tokenizer, WordListTokenizer) and tokenizer.kind == "characters"
    return () if only_text else (tokenizer.end_of_document_id,)
