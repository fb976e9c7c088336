"""Hugging Face's ``tokenizer.json``: byte-level BPE goes to tiktoken, all else to ``tokenizers``."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.core.files import atomic_write
from groundup.core.manifest import fingerprint
from groundup.core.vocabulary import not_in_vocabulary
from groundup.tokens.tokenizer.bpe import (
    GPT2_PATTERN,
    ByteLevelBpe,
    to_bytes,
    whole_text,
    write_tokenizer,
)


def byte_level_bpe(document: Mapping[str, Any]) -> ByteLevelBpe | None:
    """Reads the byte-level BPE that a ``tokenizer.json`` describes; None when it is anything else.

    Anything else includes a normaliser, a prefix space, added tokens that are matched in ordinary
    text, and a vocabulary without all 256 bytes.
    """
    model = document["model"]
    plain = (
        document.get("normalizer") is None
        and model.get("type", "BPE") == "BPE"
        and not any(
            model.get(key)
            for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
        )
        and all(token["special"] for token in document.get("added_tokens", ()))
        and (document.get("decoder") or {}).get("type") == "ByteLevel"
    )
    pattern = _pattern(document.get("pre_tokenizer") or {})
    if not plain or pattern is None:
        return None
    entries: dict[str, int] = model["vocab"]
    specials = {token["content"]: token["id"] for token in document.get("added_tokens", ())}
    bpe = ByteLevelBpe(
        vocab={token: number for token, number in entries.items() if token not in specials},
        merges=[_pair(merge) for merge in model["merges"]],
        specials=specials,
        pattern=pattern,
        whole_pieces=bool(model.get("ignore_merges")),
    )
    if any(token not in bpe.vocab for token in bpe.ranked):
        return None
    if bpe.whole_pieces and any(len(_pieces(pattern, special)) == 1 for special in specials):
        return None  # written in a text it would be looked up as a whole piece
    return bpe


def _pieces(pattern: str, text: str) -> list[Any]:
    from tokenizers import Regex, pre_tokenizers

    found: list[Any] = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)
    return found


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _pattern(pre_tokenizer: Mapping[str, Any]) -> str | None:
    """Returns the pattern of a pre-tokenizer that is GPT-2's or a split followed by bytes; else None."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, **rest} if rest.get("use_regex", True):
            return GPT2_PATTERN
        case {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": str(pattern)},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
    return None


def document_fingerprint(document: Mapping[str, Any]) -> str:
    """Hashes the parts of a ``tokenizer.json`` that decide the ids and the text."""
    parts = ("model", "added_tokens", "normalizer", "pre_tokenizer", "decoder")
    return fingerprint({part: document.get(part) for part in parts})


class HuggingFaceTokenizer:
    """A ``Tokenizer`` on the ``tokenizers`` library: any ``tokenizer.json``, exactly, but slower.

    Args:
        document: The content of ``tokenizer.json``.
        end_of_document: A token of its vocabulary.
        where: The file, for messages.
        settings: The ``tokenizer_config.json`` beside it, kept for ``save``.
        model_file: The ``tokenizer.model`` beside it, likewise: some readers of Llamas take no other file.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        *,
        end_of_document: str,
        where: Path,
        settings: Mapping[str, Any] | None = None,
        model_file: bytes | None = None,
    ) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
        except Exception as error:  # the library raises nothing more precise
            raise DataError(f"the tokenizers library cannot read it ({error})", where=where) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # specials written in a text are ordinary text
        self._document = document
        self._settings = settings
        self._model_file = model_file
        self._end_of_document = end_of_document
        number = self._tokenizer.token_to_id(end_of_document)
        if number is None:
            raise DataError(f"has no token {end_of_document!r}", where=where)
        self.end_of_document_id: int = number
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def kind(self) -> str:
        """What sort of tokenizer it is, in words."""
        return f"{self._document['model'].get('type', 'BPE')} through the tokenizers library"

    @functools.cached_property
    def special_tokens(self) -> dict[str, int]:
        """Name -> id of the tokens that stand for no text."""
        added = self._document.get("added_tokens", ())
        return {token["content"]: token["id"] for token in added if token["special"]}

    @functools.cached_property
    def fingerprint(self) -> str:
        """The hash of the whole ``tokenizer.json``."""
        return document_fingerprint(self._document)

    @functools.cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special_tokens.values())

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(self._document.get("decoder"))

    def encode(self, text: str) -> list[int]:
        """The ids of a text; special tokens written in it are ordinary text."""
        ids: list[int] = self._tokenizer.encode(whole_text(text), add_special_tokens=False).ids
        return ids

    def encode_array(self, text: str) -> npt.NDArray[np.uint32]:
        """The ids of a text as uint32 [num_tokens]."""
        return np.array(self.encode(text), dtype=np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens by their names, invalid UTF-8 as U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def token_bytes(self, id: int) -> bytes:  # noqa: A002  # the protocol's name
        """The bytes of text that an id stands for; none for a special token."""
        if not 0 <= id < self.vocab_size:
            raise not_in_vocabulary(id, self.vocab_size)
        written = self._tokenizer.id_to_token(id)
        if written is None or id in self._special_ids:  # some vocabularies have gaps
            return b""
        if self._is_byte_level:
            content = to_bytes(written)
            return written.encode() if content is None else content
        if re.fullmatch(r"<0x[0-9A-F]{2}>", written):  # SentencePiece's byte fallback
            return bytes([int(written[3:5], 16)])
        return bytes(written.replace("\u2581", " ").encode())

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.json``, ``tokenizer_config.json`` and a ``tokenizer.model`` that came along."""
        if self._model_file is not None:
            with atomic_write(folder / "tokenizer.model") as file:
                file.write(self._model_file)
        write_tokenizer(folder, self._document, self._settings, self._end_of_document)


def bos_ids(folder: Path) -> tuple[int, ...]:
    """Returns the ids that a folder's ``tokenizer.json`` puts before each text: those of the empty text."""
    import tokenizers

    path = folder / "tokenizer.json"
    if not path.is_file() or not json.loads(path.read_bytes()).get("post_processor"):
        return ()
    return tuple(tokenizers.Tokenizer.from_file(str(path)).encode("").ids)
