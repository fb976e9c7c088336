"""What a tokenizer is, and how one is loaded from any of the forms in which people have it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.core.files import read_json
from groundup.core.log import logger
from groundup.tokens.byte_level import ByteLevelBpe, ByteLevelTokenizer, merges_are_ranks
from groundup.tokens.gpt2_files import NAMES, read_gpt2_files
from groundup.tokens.huggingface_json import HuggingFaceTokenizer, byte_level_bpe

_ENDS_OF_DOCUMENT = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "[SEP]",
)


class Tokenizer(Protocol):
    """Text <-> ids, the same for every implementation."""

    vocab_size: int
    """Number of ids, special tokens included, without padding."""
    end_of_document_id: int
    """The id that closes a document."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the ids: vocabulary, merges, special tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text; special tokens written in it are ordinary text."""
        ...

    def encode_array(self, text: str) -> npt.NDArray[np.uint32]:
        """The ids of a text as uint32 [num_tokens]."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens by their names, invalid UTF-8 as U+FFFD."""
        ...

    def token_bytes(self, id: int) -> bytes:  # noqa: A002
        """The bytes of text that an id stands for; none for a special token."""
        ...

    def save(self, folder: Path) -> None:
        """Writes a folder that ``load_tokenizer`` and ``transformers.AutoTokenizer`` read."""
        ...


def load_tokenizer(path: Path) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        path: A ``tokenizer.json``, or a folder with one or with GPT-2's two files
            (``vocab.json`` and ``merges.txt``, also as ``gpt2-vocab.json`` and ``gpt2-merges.txt``).

    Raises:
        DataError: Nothing of this kind is there, or a file is malformed.
    """
    if path.is_file():
        return _from_json(path)
    if (path / "tokenizer.json").is_file():
        return _from_json(path / "tokenizer.json")
    for vocab_name, merge_name in NAMES:
        if (path / vocab_name).is_file() and (path / merge_name).is_file():
            return load_gpt2_files(path / vocab_name, path / merge_name)
    raise DataError(
        "holds no tokenizer: neither tokenizer.json nor vocab.json with merges.txt"
        if path.is_dir()
        else "no such tokenizer",
        where=path,
        fix="Give a folder with these files, or train one with `groundup tokenizer train`.",
    )


def load_gpt2_files(vocab_file: Path, merge_file: Path) -> Tokenizer:
    """Loads a tokenizer from GPT-2's two files.

    Raises:
        DataError: A file is missing or malformed, or there is no end-of-document token.
    """
    bpe = read_gpt2_files(vocab_file, merge_file)
    end = _end_of_document({}, bpe.specials, vocab_file)
    return _byte_level(bpe, end, vocab_file, None, None)


def _from_json(path: Path) -> Tokenizer:
    document: Any = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise DataError(
            "is not a tokenizer.json (no model in it)",
            where=path,
            fix="Give the folder, or GPT-2's two files as --vocab-file and --merge-file.",
        )
    beside = path.with_name("tokenizer_config.json")
    settings: dict[str, Any] | None = read_json(beside) if beside.is_file() else None
    specials = {token["content"]: token["id"] for token in document.get("added_tokens", ())}
    end = _end_of_document(settings or {}, specials, path)
    bpe = byte_level_bpe(document)
    if bpe is not None and end in bpe.specials:
        return _byte_level(bpe, end, path, document, settings)
    return HuggingFaceTokenizer(document, end_of_document=end, where=path, settings=settings)


def _byte_level(
    bpe: ByteLevelBpe,
    end_of_document: str,
    path: Path,
    document: dict[str, Any] | None,
    settings: dict[str, Any] | None,
) -> Tokenizer:
    if merges_are_ranks(bpe.merges):
        return ByteLevelTokenizer(bpe, end_of_document=end_of_document, document=document, settings=settings)
    logger.info("%s: its merges are not ranks, so the slower tokenizers library encodes", path)
    return HuggingFaceTokenizer(
        document or bpe.document(), end_of_document=end_of_document, where=path, settings=settings
    )


def _end_of_document(settings: Mapping[str, Any], specials: Mapping[str, int], where: Path) -> str:
    """The end-of-document token: the one that the settings name, else a well-known one."""
    named = settings.get("eos_token")
    if isinstance(named, dict):
        named = named.get("content")
    for candidate in (named, *_ENDS_OF_DOCUMENT):
        if candidate in specials:
            return str(candidate)
    raise DataError(
        f"has no end-of-document token: none of {', '.join(_ENDS_OF_DOCUMENT)} is a special token of it",
        where=where,
        fix="Name one as eos_token in tokenizer_config.json beside it.",
    )
