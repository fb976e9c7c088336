"""Byte-level byte-pair encoding, as in GPT-2: text -> pieces by a pattern -> bytes -> merges.

Encoding runs in ``tiktoken``, which joins two neighbours when their *joined bytes* have a rank;
the definition (GPT-2's encoder, Hugging Face) joins them when the *pair* has one. ``merges_are_ranks``
proves for a vocabulary that both give the same ids.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tiktoken

from groundup.core.errors import DataError
from groundup.core.files import atomic_write, write_json
from groundup.core.manifest import fingerprint

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2 cuts text into pieces (Radford et al. 2019, encoder.py)."""

# The same pieces, without backtracking: possessive quantifiers, and the usual end of text first.
_QUICK_PATTERNS = {
    GPT2_PATTERN: r"'(?:[stmd]|re|ve|ll)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
}


@functools.cache
def byte_characters() -> tuple[str, ...]:
    """The printable character that stands for each byte in vocabulary files (GPT-2's table)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


@functools.cache
def _character_bytes() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(byte_characters())}


def to_bytes(written: str) -> bytes | None:
    """The bytes that a token's written form stands for; None when it is not of that form."""
    table = _character_bytes()
    try:
        return bytes([table[character] for character in written])
    except KeyError:
        return None


@dataclasses.dataclass(frozen=True)
class ByteLevelBpe:
    """A vocabulary and its merges.

    Attributes:
        vocab: Written form -> id, without the special tokens.
        merges: Pairs of written forms, first the one that was learned first.
        specials: Special token -> id.
        pattern: Regular expression that cuts text into pieces.
    """

    vocab: Mapping[str, int]
    merges: Sequence[tuple[str, str]]
    specials: Mapping[str, int]
    pattern: str = GPT2_PATTERN

    def document(self) -> dict[str, Any]:
        """The content of a ``tokenizer.json``."""
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
                "ignore_merges": False,
                "vocab": {**self.vocab, **self.specials},
                "merges": [list(merge) for merge in self.merges],
            },
        }

    def joined(self) -> list[str]:
        """The token that each merge makes."""
        return [left + right for left, right in self.merges]


def merges_are_ranks(merges: Sequence[tuple[str, str]]) -> bool:
    """Whether joining by the rank of the joined bytes gives the ids that joining by pairs gives."""
    return len(ranked_merges(merges)) == len(merges)


def ranked_merges(merges: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The merges without those for which joining by bytes and joining by pairs could differ.

    By induction over the ranks, both are the same when each token has one merge (left, right), both of
    lower rank, and no neighbours x (end of left) and y (start of right) that exist at the same time
    join before left and right are whole: then a token's bytes always arrive as its left and its right.
    """
    rank = dict.fromkeys(byte_characters(), -1)
    parts: dict[str, tuple[str, str]] = {}
    kept: list[tuple[str, str]] = []
    never = len(merges)

    def spine(token: str, side: int) -> list[tuple[str, int, int]]:
        """Pieces at one end of a token while it is being joined: (piece, rank it appears, vanishes)."""
        pieces = [(token, rank[token], never)]
        while token in parts:
            vanishes = rank[token]
            token = parts[token][side]
            pieces.append((token, rank[token], vanishes))
        return pieces

    ends_of = functools.cache(lambda token: spine(token, 1))
    starts_of = functools.cache(lambda token: spine(token, 0))

    def is_crossed(left: str, right: str) -> bool:
        for x, x_appears, x_vanishes in ends_of(left):
            for y, y_appears, y_vanishes in starts_of(right):
                if x_appears >= y_vanishes:
                    break  # the pieces of ``right`` that follow vanished even earlier
                # Of equal ranks the leftmost joins first: x's own merge, but not y's.
                crossing = rank.get(x + y, never)
                if y_appears < x_vanishes and crossing < x_vanishes and crossing <= y_vanishes:
                    return True
        return False

    for number, (left, right) in enumerate(merges):
        joined = left + right
        if joined not in rank and left in rank and right in rank and not is_crossed(left, right):
            rank[joined] = number
            parts[joined] = (left, right)
            kept.append((left, right))
    return kept


class ByteLevelTokenizer:
    """A ``Tokenizer`` on ``tiktoken``.

    Args:
        bpe: A vocabulary for whose merges ``merges_are_ranks`` holds.
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
        in_order = [*byte_characters(), *bpe.joined()]
        table = _character_bytes()
        ranks = {bytes([table[c] for c in written]): rank for rank, written in enumerate(in_order)}
        ids = np.array([bpe.vocab[written] for written in in_order], dtype=np.uint32)
        # GPT-2's byte ids have an order of their own, and some vocabularies shuffle all ids.
        self._ids = ids
        self._id_list = ids.tolist()
        self._encoding = tiktoken.Encoding(
            "groundup",
            pat_str=_QUICK_PATTERNS.get(bpe.pattern, bpe.pattern),
            mergeable_ranks=ranks,
            # Never yielded; but without any, encode_to_numpy looks for the empty string at each character.
            special_tokens={end_of_document: len(ranks)},
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of vocabulary, merges, special tokens and pattern."""
        bpe = self.bpe
        vocab = "\n".join(f"{token} {bpe.vocab[token]}" for token in sorted(bpe.vocab))
        merges = "\n".join(map(" ".join, bpe.merges))
        return fingerprint([bpe.pattern, vocab, merges, dict(bpe.specials)])

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
        try:
            ranks = self._encoding.encode_to_numpy(text, allowed_special=set(), disallowed_special=())
        except UnicodeEncodeError:  # lone surrogates become U+FFFD, as in ``encode``
            return np.array(self.encode(text), dtype=np.uint32)
        return self._ids[ranks]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens by their names, invalid UTF-8 as U+FFFD."""
        specials = self._special_names
        content = (
            specials[number].encode() if number in specials else self.token_bytes(number) for number in ids
        )
        return b"".join(content).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:  # noqa: A002  # the protocol's name
        """The bytes of text that an id stands for; none for a special token."""
        content = self._bytes.get(id)
        if content is not None:
            return content
        if id in self._special_names:
            return b""
        raise DataError(
            f"token id {id} is outside the vocabulary of {self.vocab_size:,} ids",
            fix="Use the tokenizer that the ids were made with.",
        )

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.json``, ``tokenizer_config.json``, ``vocab.json`` and ``merges.txt``."""
        write_tokenizer(folder, self._document or self.bpe.document(), self._settings, self._end_of_document)
        with atomic_write(folder / "merges.txt") as file:
            lines = ["#version: 0.2", *(f"{left} {right}" for left, right in self.bpe.merges)]
            file.write(("\n".join(lines) + "\n").encode())
        write_json(folder / "vocab.json", {**self.bpe.vocab, **self.bpe.specials})


def write_tokenizer(
    folder: Path,
    document: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    end_of_document: str,
) -> None:
    """Writes the two files that ``transformers.AutoTokenizer`` reads."""
    write_json(folder / "tokenizer.json", document)
    plain = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": end_of_document,
        "eos_token": end_of_document,
        "unk_token": end_of_document,
        "model_max_length": 10**30,  # what transformers writes for "unlimited"
    }
    write_json(folder / "tokenizer_config.json", settings or plain)
