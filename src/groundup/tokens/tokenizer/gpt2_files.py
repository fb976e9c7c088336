"""GPT-2's own tokenizer files: ``vocab.json`` (token -> id) and ``merges.txt`` (a pair a line)."""

import re
from pathlib import Path
from typing import Any

import orjson

from groundup.core.errors import DataError
from groundup.core.files import read_json
from groundup.tokens.tokenizer.bpe import ByteLevelBpe, byte_characters

NAMES = (
    ("vocab.json", "merges.txt"),
    ("gpt2-vocab.json", "gpt2-merges.txt"),
    ("encoder.json", "vocab.bpe"),
)
"""The names under which the two files are passed on: Hugging Face's, Megatron-LM's and OpenAI's."""
_PAIRS = re.compile(r"(?:[^ \n\r]++ [^ \n\r]++\n)*+")


def read_gpt2_files(vocab_file: Path, merge_file: Path) -> ByteLevelBpe:
    """Reads the two files; entries that are neither a byte nor made by a merge are special tokens.

    Raises:
        DataError: A file is missing or malformed, or the two do not belong together.
    """
    entries: Any
    try:
        entries = orjson.loads(vocab_file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        entries = read_json(vocab_file)  # says what is wrong, and on which line
    if not isinstance(entries, dict) or set(map(type, entries.values())) != {int}:
        raise DataError("is not a vocabulary: a JSON object of token: id", where=vocab_file)
    if len(set(entries.values())) != len(entries):
        raise DataError("gives one id to two tokens", where=vocab_file)
    merges = _read_merges(merge_file)
    try:
        vocab = {token: entries[token] for token in (*byte_characters(), *map("".join, merges))}
    except KeyError as error:
        raise DataError(
            f"has no token {error.args[0]!r}, which {merge_file.name} needs",
            where=vocab_file,
            fix="Give the two files of the same tokenizer.",
        ) from None
    specials = {token: entries[token] for token in entries.keys() - vocab.keys()}
    return ByteLevelBpe(vocab=vocab, merges=merges, specials=specials)


def _read_merges(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read ({error})", where=path, fix="Check the path.") from None
    head, _, body = text.partition("\n")
    if head.startswith("#version") and _PAIRS.fullmatch(body):
        words = iter(body.replace("\n", " ").split(" "))
        return list(zip(words, words, strict=False))  # the last word is what follows the last line: nothing
    merges = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.rstrip("\r").partition(" ")
        if not space or not left or not right or " " in right:
            raise DataError(f"{line!r} is not a pair of tokens", where=f"{path}:{number}")
        merges.append((left, right))
    return merges
