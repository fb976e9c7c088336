"""Loads a tokenizer from any of the usual files, folders and names."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.core.errors import DataError
from groundup.core.files import read_json
from groundup.core.log import logger
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.bpe import ByteLevelBpe, ByteLevelTokenizer, byte_characters
from groundup.tokens.tokenizer.bpe_merges import merges_as_ranks
from groundup.tokens.tokenizer.gpt2 import (
    GPT2_FINGERPRINT,
    NAMES,
    document_with,
    gpt2_files,
    is_gpt2,
    read_added_tokens,
    read_gpt2_files,
    with_added,
)
from groundup.tokens.tokenizer.huggingface import HuggingFaceTokenizer, byte_level_bpe
from groundup.tokens.tokenizer.sentencepiece import SentencePieceTokenizer
from groundup.tokens.tokenizer.tiktoken import is_rank_file, named_encoding, read_rank_file
from groundup.tokens.tokenizer.word_list import named_integers, read_word_list

_OF_CHECKPOINTS = ("tokenizer", "checkpoints/latest/tokenizer")
_GET_AGAIN = "Get the file again, or train a tokenizer with `groundup tokenizer train`."


_ENDS_OF_DOCUMENT = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "[SEP]",
)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Loads a tokenizer; a path that exists wins over a name.

    Args:
        path: One of

            - a folder with ``tokenizer.json``, with GPT-2's two files (``vocab.json`` and ``merges.txt``,
              also as ``gpt2-vocab.json`` and ``gpt2-merges.txt``, ``encoder.json`` and ``vocab.bpe``), or
              with ``tokenizer.model``; of several the first of these;
            - a run folder or a checkpoint, which has such a folder within;
            - a ``tokenizer.json``, a SentencePiece ``tokenizer.model``, or a file of tiktoken's ranks
              (``.tiktoken``, Llama 3's ``tokenizer.model``);
            - ``gpt2`` (also ``GPT2BPETokenizer``): from this machine, else downloaded once and verified;
            - ``tiktoken:cl100k_base`` and tiktoken's other names;
            - ``bytes``: each byte is its id, and ``<|endoftext|>`` is 256;
            - ``none:50257``: so many ids that are no text; the last ends a document.

    Raises:
        DataError: Nothing of this kind is there, or a file is malformed.
        MachineError: A download failed, or a library is not installed.
    """
    path = Path(path)
    if path.is_dir():
        return _from_folder(path)
    if path.exists():
        return _from_file(path)
    return _from_name(path)


def holds_tokenizer(folder: Path) -> bool:
    """Tells whether ``load_tokenizer`` finds a tokenizer in a folder."""
    return _tokenizer_in(folder) is not None


def tokenizer_folder(path: Path) -> Path | None:
    """Finds the folder that ``load_tokenizer`` would read the tokenizer from; None where there is none."""
    found = _tokenizer_in(path) if path.is_dir() else None
    return found[0].parent if found else None


def load_gpt2_files(vocab_file: Path, merge_file: Path) -> Tokenizer:
    """Loads a tokenizer from GPT-2's two files.

    Raises:
        DataError: A file is missing or malformed, or there is no end-of-document token.
    """
    bpe = read_gpt2_files(vocab_file, merge_file)
    end = _end_of_document({}, bpe.specials, vocab_file)
    if is_gpt2(vocab_file, merge_file):  # whose merges are known to be ranks: it loads in a third of the time
        return ByteLevelTokenizer(bpe, end_of_document=end)
    return _byte_level(bpe, end, vocab_file, None, None)


def _tokenizer_in(folder: Path) -> tuple[Path, ...] | None:
    """Finds the file or the two files of the tokenizer in a folder."""
    for place in (folder, *(folder / within for within in _OF_CHECKPOINTS)):
        for names in (("tokenizer.json",), *NAMES, ("tokenizer.model",)):
            if all((place / name).is_file() for name in names):
                return tuple(place / name for name in names)
    return None


def _from_folder(folder: Path) -> Tokenizer:
    match _tokenizer_in(folder):
        case (vocab_file, merge_file):
            return _from_gpt2_folder(vocab_file, merge_file)
        case (file,):
            return _from_file(file)
    raise DataError(
        "holds no tokenizer: neither tokenizer.json nor vocab.json with merges.txt nor tokenizer.model",
        where=folder,
        fix="Give a folder with these files, or train one with `groundup tokenizer train`.",
    )


def _from_gpt2_folder(vocab_file: Path, merge_file: Path) -> Tokenizer:
    """Loads GPT-2's two files with what ``transformers`` keeps beside them: settings and added tokens."""
    folder = vocab_file.parent
    beside = folder / "tokenizer_config.json"
    settings: Any = read_json(beside) if beside.is_file() else None
    if settings is not None and not isinstance(settings, dict):
        raise DataError("is not a JSON object", where=beside)
    added = read_added_tokens(folder, settings or {})
    plain = read_gpt2_files(vocab_file, merge_file)
    bpe = with_added(plain, added, folder)
    end = _end_of_document(settings or {}, bpe.specials, vocab_file)
    if document := document_with(bpe, added):
        return HuggingFaceTokenizer(document, end_of_document=end, where=vocab_file, settings=settings)
    if is_gpt2(vocab_file, merge_file):  # whose merges are known to be ranks
        return ByteLevelTokenizer(bpe, end_of_document=end, settings=settings)
    return _byte_level(bpe, end, vocab_file, None, settings)


def _from_file(path: Path) -> Tokenizer:
    """Chooses by content: a SentencePiece model and a file of ranks are both named ``tokenizer.model``."""
    with path.open("rb") as file:
        begin = file.read(64)
    if path.suffix == ".json" or begin.lstrip().startswith(b"{"):
        return _from_json(path)
    if is_rank_file(path):
        return _from_ranks(read_rank_file(path), path)
    if path.suffix == ".model" or begin.startswith(b"\n"):  # the first piece's tag
        return SentencePieceTokenizer(path)
    raise DataError(
        "is no file of a tokenizer",
        where=path,
        fix="Give a tokenizer.json, a tokenizer.model or a file of tiktoken's ranks; GPT-2's two files go by"
        " --vocab-file and --merge-file.",
    )


def _from_name(path: Path) -> Tokenizer:
    name = str(path)
    match name.partition(":"):
        case ("gpt2" | "GPT2BPETokenizer", "", "") | ("tiktoken", ":", "gpt2"):
            return load_gpt2_files(*gpt2_files())
        case ("tiktoken", ":", encoding):
            return _from_ranks(named_encoding(encoding), path)
        case ("bytes", "", ""):
            alphabet = {character: byte for byte, character in enumerate(byte_characters())}
            bpe = ByteLevelBpe(vocab=alphabet, merges=[], specials={_ENDS_OF_DOCUMENT[0]: 256})
            return ByteLevelTokenizer(bpe, end_of_document=_ENDS_OF_DOCUMENT[0])
        case ("none", _, _):
            return named_integers(name)
        case ("NullTokenizer", "", ""):
            raise DataError("has no files", where=name, fix="Say how many ids there are: none:50257, say.")
        case (str(kind), "", "") if kind.endswith("Tokenizer"):
            raise DataError(
                "a kind of tokenizer in Megatron-LM, not a tokenizer",
                where=name,
                fix="Give its file or folder, for example tokenizer.model.",
            )
    raise DataError(
        "no such tokenizer",
        where=name,
        fix="Give a folder or file, or one of the names gpt2, bytes, tiktoken:cl100k_base,"
        " tiktoken:o200k_base, none:SIZE; or train one with `groundup tokenizer train`.",
    )


def _from_json(path: Path) -> Tokenizer:
    document: Any = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise DataError(
            "is not a tokenizer.json (no model in it)",
            where=path,
            fix="Give the folder, or GPT-2's two files as --vocab-file and --merge-file.",
        )
    specials = _added_tokens(document, path)
    if words := read_word_list(document):
        return words
    beside = path.with_name("tokenizer_config.json")
    settings: dict[str, Any] | None = read_json(beside) if beside.is_file() else None
    end = _end_of_document(settings or {}, specials, path)
    try:
        bpe = byte_level_bpe(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a part of another form
        raise DataError(
            f"is not a whole tokenizer.json ({type(error).__name__}: {error})", where=path, fix=_GET_AGAIN
        ) from None
    if bpe is not None and end in bpe.specials:
        return _byte_level(bpe, end, path, document, settings)
    model = path.with_name("tokenizer.model")
    model_file = model.read_bytes() if model.is_file() else None
    return HuggingFaceTokenizer(
        document, end_of_document=end, where=path, settings=settings, model_file=model_file
    )


def _added_tokens(document: dict[str, Any], path: Path) -> dict[str, int]:
    """Returns the special and other added tokens -> ids."""
    added = document.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise DataError("added_tokens is no list of tokens", where=path, fix=_GET_AGAIN)
    tokens = {token.get("content"): token.get("id") for token in added}
    _require_ids(tokens, path)
    return tokens


def _require_ids(vocab: Mapping[Any, Any], path: Path) -> None:
    """Refuses a vocabulary whose entries are not texts and ids."""
    for name, number in vocab.items():
        if type(name) is not str or type(number) is not int or not 0 <= number < 1 << 32:
            raise DataError(f"the token {name!r} has the id {number!r}", where=path, fix=_GET_AGAIN)


def _from_ranks(bpe: ByteLevelBpe, path: Path) -> Tokenizer:
    return ByteLevelTokenizer(bpe, end_of_document=_end_of_document({}, bpe.specials, path))


def _byte_level(
    bpe: ByteLevelBpe,
    end_of_document: str,
    path: Path,
    document: dict[str, Any] | None,
    settings: dict[str, Any] | None,
) -> Tokenizer:
    _require_ids(bpe.vocab, path)
    if not all(len(merge) == 2 and all(type(part) is str for part in merge) for merge in bpe.merges):
        raise DataError("a merge is no pair of tokens", where=path, fix=_GET_AGAIN)
    merges = bpe.merges
    if bpe.fingerprint != GPT2_FINGERPRINT:  # whose merges are known to be ranks
        found = merges_as_ranks(bpe.merges, byte_characters())
        made = {left + right for left, right in bpe.merges}
        if found is None or (len(found) < len(made) and not bpe.whole_pieces):
            logger.info("%s: its merges are not ranks, so the slower tokenizers library encodes", path)
            return HuggingFaceTokenizer(
                document or bpe.document(), end_of_document=end_of_document, where=path, settings=settings
            )
        merges = found
    return ByteLevelTokenizer(
        dataclasses.replace(bpe, merges=merges),
        end_of_document=end_of_document,
        document=document,
        settings=settings,
    )


def _end_of_document(settings: Mapping[str, Any], specials: Mapping[str, int], where: Path) -> str:
    """Finds the end-of-document token: the one that the settings name, else a well-known one."""
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
