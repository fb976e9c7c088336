"""Finds GPT-2's two files on this machine or downloads them once; reads them and added tokens."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from groundup.core.errors import DataError, MachineError
from groundup.core.files import atomic_write, read_json, user_cache_dir
from groundup.core.log import logger
from groundup.tokens.tokenizer.bpe import ByteLevelBpe, byte_characters

VOCAB_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
GPT2_FINGERPRINT = "0ace6e27e4cb9499"
"""That of the tokenizer that the two files make."""

SOURCES = (
    (
        "https://huggingface.co/openai-community/gpt2/resolve/main/vocab.json",
        "https://huggingface.co/openai-community/gpt2/resolve/main/merges.txt",
    ),
    (
        "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/encoder.json",
        "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe",
    ),
)
"""Where the vocabulary and the merges are published, the first choice first."""

_MAX_BYTES = 4_000_000  # the larger one has 1,042,301
_TIMEOUT_SECONDS = 20


def cache_dir() -> Path:
    """Returns the folder for the two files: ``groundup/gpt2`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``."""
    return user_cache_dir("gpt2")


def is_gpt2(vocab_file: Path, merge_file: Path) -> bool:
    """Tells whether these are GPT-2's own two files, byte for byte."""
    return all(
        path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == expected
        for path, expected in ((vocab_file, VOCAB_SHA256), (merge_file, MERGES_SHA256))
    )


def gpt2_at_hand() -> tuple[Path, Path] | None:
    """Finds GPT-2's vocabulary and merges on this machine; None where it does not have them.

    Looks in the working directory, in ``cache_dir()`` and in the cache of ``huggingface_hub``, under each
    name of ``NAMES``, and takes only files whose content is right.
    """
    for folder in (Path(), cache_dir(), *_hub_snapshots()):
        for vocab_name, merge_name in NAMES:
            files = folder / vocab_name, folder / merge_name
            if is_gpt2(*files):
                return files
    return None


def gpt2_files(sources: Sequence[tuple[str, str]] = SOURCES) -> tuple[Path, Path]:
    """Finds GPT-2's vocabulary and merges on this machine, else downloads them into ``cache_dir()``.

    Nothing is written unless both files came with the right content.

    Args:
        sources: URLs of the vocabulary and the merges, tried in this order.

    Raises:
        MachineError: They are not here and could not be fetched.
    """
    found = gpt2_at_hand()
    if found:
        return found
    folder = cache_dir()
    failures = []
    for urls in sources:
        logger.info("gpt2: fetching its two files, 1.5 MB, from %s", urls[0].rpartition("/")[0])
        try:
            contents = [_fetch(urls[0], VOCAB_SHA256), _fetch(urls[1], MERGES_SHA256)]
        except _FetchError as error:
            failures.append(str(error))
            continue
        files = folder / NAMES[0][0], folder / NAMES[0][1]
        for path, content in zip(files, contents, strict=True):
            with atomic_write(path) as file:
                file.write(content)
        logger.info("gpt2: kept in %s", folder)
        return files
    raise MachineError(
        f"its vocabulary and merges are not on this machine and could not be fetched: {'; '.join(failures)}",
        where="tokenizer gpt2",
        fix=f"Where there is a network, get {SOURCES[0][0]} and {SOURCES[0][1]}; put them into {folder}"
        " or into the working directory, or name them with --vocab-file and --merge-file.",
    )


class _FetchError(Exception):
    """Why one URL did not give the file."""


def _fetch(url: str, expected_sha256: str) -> bytes:
    import http.client  # 30 ms, for the one time that it is needed
    import urllib.request

    try:
        # The scheme is that of SOURCES: never a file of this machine.
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
            content: bytes = response.read(_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _FetchError(f"{url} ({reason})") from None
    found = hashlib.sha256(content).hexdigest()
    if found != expected_sha256:
        raise _FetchError(
            f"{url} (its {len(content):,} bytes are another file: sha256 {found[:12]}..., not"
            f" {expected_sha256[:12]}...)"
        )
    return content


def _hub_snapshots() -> list[Path]:
    """Returns the folders in which ``huggingface_hub`` keeps its downloads of GPT-2."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))
    names = ("models--openai-community--gpt2", "models--gpt2")
    return sorted(path for name in names for path in hub.glob(f"{name}/snapshots/*"))


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


_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddedToken:
    """A token that was added to a vocabulary.

    Attributes:
        content: Its text.
        id: Its id.
        special: Whether it stands for no text; any other is matched in ordinary text.
        flags: How it is matched, as a ``tokenizer.json`` has it.
    """

    content: str
    id: int
    special: bool
    flags: Mapping[str, bool]


def read_added_tokens(folder: Path, settings: Mapping[str, Any]) -> list[AddedToken]:
    """Reads the tokens that a folder adds to its vocabulary, each once.

    Args:
        folder: With ``added_tokens.json``, perhaps.
        settings: Its ``tokenizer_config.json``, which knows more of them and wins.

    Raises:
        DataError: They are no tokens with ids.
    """
    path = folder / "added_tokens.json"
    decoder: Any = settings.get("added_tokens_decoder") or {}
    named: Any = read_json(path) if path.is_file() else {}
    where = path
    try:
        found = {token: _plain(token, number) for token, number in named.items()}
        where = folder / "tokenizer_config.json"
        found |= {entry["content"]: _described(number, entry) for number, entry in decoder.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError("its added tokens are not tokens with ids", where=where) from None
    return list(found.values())


def with_added(bpe: ByteLevelBpe, added: list[AddedToken], where: Path) -> ByteLevelBpe:
    """Adds the tokens that stand for no text to a tokenizer's special tokens.

    Raises:
        DataError: A token's id is another's, or the token has another id in the vocabulary.
    """
    tokens = {**bpe.vocab, **bpe.specials}
    owners = {number: token for token, number in tokens.items()}
    for token in added:
        owner, known = owners.get(token.id, token.content), tokens.get(token.content, token.id)
        if owner != token.content or known != token.id:
            why = (
                f"which is that of {owner!r}"
                if owner != token.content
                else f"in the vocabulary it is {known}"
            )
            raise DataError(
                f"the added token {token.content!r} has the id {token.id}, {why}",
                where=where,
                fix="Put the files of one tokenizer into the folder.",
            )
    new = {token.content: token.id for token in added if token.special and token.content not in bpe.vocab}
    return dataclasses.replace(bpe, specials={**bpe.specials, **new})


def document_with(bpe: ByteLevelBpe, added: list[AddedToken]) -> dict[str, Any] | None:
    """Returns the ``tokenizer.json`` where some are matched in ordinary text; None where none is."""
    matched = [token for token in added if not token.special and token.content not in bpe.vocab]
    if not matched:
        return None
    document = bpe.document()
    document["added_tokens"] += [
        {"id": token.id, "content": token.content, **token.flags, "special": False} for token in matched
    ]
    document["added_tokens"].sort(key=lambda token: token["id"])
    document["model"]["vocab"] |= {token.content: token.id for token in matched}  # else they get other ids
    return document


def _plain(token: str, number: Any) -> AddedToken:
    return AddedToken(content=token, id=_id(number), special=True, flags=dict.fromkeys(_FLAGS, False))


def _described(number: str, entry: Mapping[str, Any]) -> AddedToken:
    flags = {flag: bool(entry.get(flag, False)) for flag in _FLAGS}
    return AddedToken(
        content=str(entry["content"]),
        id=_id(int(number)),
        special=bool(entry.get("special", True)),
        flags=flags,
    )


def _id(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(number)
    return number
