"""Byte-level byte-pair encoding, as in GPT-2: text -> pieces by a pattern -> bytes -> merges.

Encoding runs in ``tiktoken``, which joins two neighbours when their *joined bytes* have a rank;
the definition (GPT-2's encoder, Hugging Face) joins them when the *pair* has one. ``bpe_merges.py``
proves for a vocabulary that both give the same ids.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import tiktoken

from groundup.core.files import atomic_write, write_json
from groundup.core.manifest import fingerprint
from groundup.core.vocabulary import not_in_vocabulary
from groundup.tokens.tokenizer.bpe_merges import Merge

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2 cuts text into pieces (Radford et al. 2019, encoder.py)."""

_LOOKING_AHEAD = r"|\s+(?!\S)|\s+"
_FLAGS = re.compile(r"\(\?[a-zA-Z-]+\)")

_SEPARATOR = "\uffff"  # in no written form


def quick_pattern(pattern: str) -> str:
    """Rewrites a pattern so that ``tiktoken`` cuts every text into the same pieces in a third less time.

    Its engine hands expressions without look-ahead to an automaton, but of alternatives each by itself unless
    they stand in a group. White space at the end of a text is one of them too: it does not backtrack there.
    """
    head = pattern.removesuffix(_LOOKING_AHEAD)
    if head == pattern or _FLAGS.search(pattern):  # flags would not reach beyond the group
        return pattern
    return rf"(?:{head}|\s+\z){_LOOKING_AHEAD}"


@functools.cache
def byte_characters() -> tuple[str, ...]:
    """Returns the printable character for each byte in vocabulary files (GPT-2's table)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


@functools.cache
def _character_bytes() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(byte_characters())}


def to_bytes(written: str) -> bytes | None:
    """Decodes a token's written form to bytes; None when it is not of that form."""
    table = _character_bytes()
    try:
        return bytes([table[character] for character in written])
    except KeyError:
        return None


def whole_text(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot express, by U+FFFD, and joins pairs of them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@dataclasses.dataclass(frozen=True)
class ByteLevelBpe:
    """A vocabulary and its merges.

    Attributes:
        vocab: Written form -> id, without the special tokens.
        merges: Pairs of written forms, first the one that was learned first.
        specials: Special token -> id.
        pattern: Regular expression that cuts text into pieces, as Oniguruma (``tokenizers``) and
            ``tiktoken`` both read it.
        whole_pieces: Whether a piece that is a token is that token, even if merges would not make it.
    """

    vocab: Mapping[str, int]
    merges: Sequence[Merge]
    specials: Mapping[str, int]
    pattern: str = GPT2_PATTERN
    whole_pieces: bool = False

    def document(self) -> dict[str, Any]:
        """Returns the content of a ``tokenizer.json``."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        pre_tokenizer: dict[str, Any] = {**byte_level, "use_regex": True}
        if self.pattern != GPT2_PATTERN:
            split = {
                "type": "Split",
                "pattern": {"Regex": self.pattern},
                "behavior": "Isolated",
                "invert": False,
            }
            pre_tokenizer = {
                "type": "Sequence",
                "pretokenizers": [split, {**byte_level, "use_regex": False}],
            }
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": number, "content": token, **flags}
                for token, number in sorted(self.specials.items(), key=lambda item: item[1])
            ],
            "normalizer": None,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": {**byte_level, "trim_offsets": False, "use_regex": True},
            "decoder": {**byte_level, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": self.whole_pieces,
                "vocab": {**self.vocab, **self.specials},
                "merges": [list(merge) for merge in self.merges],
            },
        }

    @functools.cached_property
    def ranked(self) -> list[str]:
        """The tokens that encoding yields: bytes, what merges make in their order, whole pieces."""
        made = [*byte_characters(), *map("".join, self.merges)]
        if not self.whole_pieces:
            return made
        return made + sorted(self.vocab.keys() - set(made), key=self.vocab.__getitem__)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of pattern, tokens in the order in which they join, ids, and special tokens.

        The order stands for the merges, which follow from it (``bpe_merges.py``).
        """
        rest = sorted(self.vocab.keys() - set(self.ranked)) if len(self.vocab) > len(self.ranked) else []
        ids = np.array(list(map(self.vocab.__getitem__, (*self.ranked, *rest))), dtype="<u4").tobytes().hex()
        return fingerprint([self.pattern, "\n".join(self.ranked), "\n".join(rest), ids, dict(self.specials)])


class ByteLevelTokenizer:
    """A ``Tokenizer`` on ``tiktoken``.

    Args:
        bpe: A vocabulary whose merges are those that ``bpe_merges.py`` finds by their order as ranks.
        end_of_document: One of its special tokens.
        document: The ``tokenizer.json`` it came from, kept for ``save``.
        settings: The ``tokenizer_config.json`` it came from, kept for ``save``.
    """

    def __init__(
        self,
        bpe: ByteLevelBpe,
        *,
        end_of_document: str,
        document: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.bpe = bpe
        self.end_of_document_id = bpe.specials[end_of_document]
        self.vocab_size = max(max(bpe.vocab.values()), max(bpe.specials.values())) + 1
        self._end_of_document = end_of_document
        self._document = document
        self._settings = settings
        table = {ord(character): byte for character, byte in _character_bytes().items()}
        tokens = _SEPARATOR.join(bpe.ranked).translate(table).split(_SEPARATOR)
        ranks = dict(zip([token.encode("latin-1") for token in tokens], range(len(tokens)), strict=True))
        ids = np.array(list(map(bpe.vocab.__getitem__, bpe.ranked)), dtype=np.uint32)
        # GPT-2's byte ids have an order of their own, and some vocabularies shuffle all ids.
        self._ids = ids
        self._id_list = ids.tolist()
        self._encoding = tiktoken.Encoding(
            "groundup",
            pat_str=quick_pattern(bpe.pattern),
            mergeable_ranks=ranks,
            # Never yielded; but without any, encode_to_numpy looks for the empty string at each character.
            special_tokens={end_of_document: len(ranks)},
        )

    @property
    def kind(self) -> str:
        """What sort of tokenizer it is, in words."""
        return "byte-level BPE" if self.bpe.merges else "bytes"

    @property
    def fingerprint(self) -> str:
        """Hash of vocabulary, merges, special tokens and pattern."""
        return self.bpe.fingerprint

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Name -> id of the tokens that stand for no text."""
        return self.bpe.specials

    @functools.cached_property
    def _bytes(self) -> dict[int, bytes]:
        written = ((number, to_bytes(token)) for token, number in self.bpe.vocab.items())
        return {number: content for number, content in written if content is not None}

    @functools.cached_property
    def _special_names(self) -> dict[int, str]:
        return {number: token for token, number in self.bpe.specials.items()}

    def encode(self, text: str) -> list[int]:
        """The ids of a text; special tokens written in it are ordinary text."""
        ids = self._id_list
        return [ids[rank] for rank in self._encoding.encode_ordinary(text)]

    def encode_array(self, text: str) -> npt.NDArray[np.uint32]:
        """The ids of a text as uint32 [num_tokens]."""
        if not self.bpe.merges:
            return self._ids[np.frombuffer(whole_text(text).encode(), dtype=np.uint8)]
        try:
            ranks = self._encoding.encode_to_numpy(text, allowed_special=set(), disallowed_special=())
        except UnicodeEncodeError:  # lone surrogates become U+FFFD, as in ``encode``
            return np.array(self.encode(text), dtype=np.uint32)
        return self._ids[ranks]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens by their names, invalid UTF-8 as U+FFFD."""
        specials = self._special_names
        content = (
            specials[number].encode() if number in specials else self.token_bytes(number) for number in ids
        )
        return b"".join(content).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:  # noqa: A002  # the protocol's name
        """The bytes of text that an id stands for; none for a special token."""
        if 0 <= id < self.vocab_size:
            return self._bytes.get(id, b"")  # some vocabularies have gaps
        raise not_in_vocabulary(id, self.vocab_size)

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.json``, ``tokenizer_config.json``, ``vocab.json`` and ``merges.txt``."""
        write_tokenizer(folder, self._document or self.bpe.document(), self._settings, self._end_of_document)
        with atomic_write(folder / "merges.txt") as file:
            lines = ["#version: 0.2", *(f"{left} {right}" for left, right in self.bpe.merges)]
            file.write(("\n".join(lines) + "\n").encode())
        with atomic_write(folder / "vocab.json") as file:
            vocab = {**self.bpe.vocab, **self.bpe.specials}
            file.write(orjson.dumps(vocab, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def write_tokenizer(
    folder: Path,
    document: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    end_of_document: str,
) -> None:
    """Writes the two files that ``transformers.AutoTokenizer`` reads."""
    with atomic_write(folder / "tokenizer.json") as file:
        file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    plain = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": end_of_document,
        "eos_token": end_of_document,
        "unk_token": end_of_document,
        "model_max_length": 10**30,  # what transformers writes for "unlimited"
    }
    write_json(folder / "tokenizer_config.json", settings or plain)
