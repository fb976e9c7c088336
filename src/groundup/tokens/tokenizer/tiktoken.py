"""tiktoken's encodings: by name, or from a file of ranks (``base64 rank`` a line)."""

import base64
import binascii
import dataclasses
import difflib
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiktoken

from groundup.core.errors import DataError, MachineError
from groundup.core.files import read_json
from groundup.tokens.tokenizer.bpe import GPT2_PATTERN, ByteLevelBpe, byte_characters
from groundup.tokens.tokenizer.bpe_merges import merges_of

CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How cl100k_base and Llama 3 cut text into pieces, in the form that Oniguruma reads as tiktoken does."""

O200K_PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)
"""How o200k_base cuts text into pieces."""

# tiktoken's own patterns for these have possessive quantifiers, which Oniguruma reads otherwise. Theirs for
# cl100k_base leaves the white space at a text's end in one piece where this one cuts behind the last line
# break: the ids are equal since no token of cl100k_base goes on behind its last line break.
_PATTERNS = {
    "r50k_base": GPT2_PATTERN,
    "p50k_base": GPT2_PATTERN,
    "p50k_edit": GPT2_PATTERN,
    "cl100k_base": CL100K_PATTERN,
    "o200k_base": O200K_PATTERN,
    "o200k_harmony": O200K_PATTERN,
}


@dataclasses.dataclass(frozen=True)
class _Published:
    """The pattern and special tokens of a published file of ranks, which does not contain them."""

    pattern: str
    specials: Mapping[str, int]


def _llama3_specials() -> dict[str, int]:
    """Returns Llama 3's 256 special tokens (llama-models, llama3/tokenizer.py)."""
    names = "begin_of_text end_of_text reserved_special_token_0 reserved_special_token_1"
    names += " finetune_right_pad_id step_id start_header_id end_header_id eom_id eot_id python_tag image"
    known = names.split()
    known += [f"reserved_special_token_{2 + number}" for number in range(256 - len(known))]
    return {f"<|{name}|>": 128_000 + number for number, name in enumerate(known)}


_FILL_IN_THE_MIDDLE = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}

# By the sha256 of the file: r50k_base, p50k_base, cl100k_base, o200k_base (tiktoken_ext/openai_public.py),
# and Llama 3's tokenizer.model.
_PUBLISHED = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": _Published(
        GPT2_PATTERN, {"<|endoftext|>": 50256}
    ),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": _Published(
        GPT2_PATTERN, {"<|endoftext|>": 50256}
    ),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": _Published(
        CL100K_PATTERN, {"<|endoftext|>": 100257, **_FILL_IN_THE_MIDDLE, "<|endofprompt|>": 100276}
    ),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": _Published(
        O200K_PATTERN, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
    ),
    "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": _Published(
        CL100K_PATTERN, _llama3_specials()
    ),
}
_READ_DIFFERENTLY = re.compile(r"\{\d+(?:,\d*)?\}\+|(?<![\\[])[$^]")
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


def named_encoding(name: str) -> ByteLevelBpe:
    """Loads the encoding of a name through tiktoken, which caches what it downloads.

    Raises:
        DataError: tiktoken knows no such name.
        MachineError: Its ranks are not in tiktoken's cache and could not be downloaded.
    """
    known = tiktoken.list_encoding_names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise DataError(
            f"tiktoken {tiktoken.__version__} has no encoding of this name",
            where=f"tokenizer tiktoken:{name}",
            fix=f"Did you mean {close[0]}?" if close else f"It has {', '.join(known)}.",
        )
    try:
        encoding = tiktoken.get_encoding(name)
    except OSError as error:  # requests' errors are OSErrors
        request = getattr(error, "request", None)
        url = getattr(request, "url", None) or "its ranks"
        kept_as = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
        raise MachineError(
            f"its ranks are not in tiktoken's cache and {url} could not be downloaded ({_innermost(error)})",
            where=f"tokenizer tiktoken:{name}",
            fix="Set TIKTOKEN_CACHE_DIR to a folder that holds the downloaded file under the name"
            f" {kept_as}, or give the path of the file itself as the tokenizer.",
        ) from None
    except ValueError as error:  # what came is another file
        raise MachineError(str(error), where=f"tokenizer tiktoken:{name}") from None
    pattern = _PATTERNS.get(name) or _readable_by_both(encoding._pat_str, f"tokenizer tiktoken:{name}")
    return _from_ranks(encoding._mergeable_ranks, encoding._special_tokens, pattern, f"tiktoken:{name}")


def is_rank_file(path: Path) -> bool:
    """Tells whether a file begins as a file of ranks."""
    with path.open("rb") as file:
        return _RANK_LINE.match(file.read(4096)) is not None


def read_rank_file(path: Path) -> ByteLevelBpe:
    """Reads a file of ranks: one of OpenAI's, Llama 3's ``tokenizer.model``, or any with a file beside it.

    Ranks alone say neither how text is cut nor which special tokens there are. The files that are
    published are known by their content; for others, ``NAME.json`` beside ``NAME.tiktoken`` says it:
    ``{"pattern": "...", "special_tokens": {"<|endoftext|>": 50256}}``.

    Raises:
        DataError: The file is malformed, or nothing says how text is cut.
    """
    content = path.read_bytes()
    ranks = _parse(content, path)
    sha256 = hashlib.sha256(content).hexdigest()
    published = _PUBLISHED.get(sha256)
    if published:
        return _from_ranks(ranks, published.specials, published.pattern, path)
    beside = path.with_suffix(".json")
    if not beside.is_file():
        raise DataError(
            "a file of ranks that is not one of the published ones: nothing says how text is cut into"
            " pieces and which special tokens there are",
            where=path,
            fix=f'Write {{"pattern": "...", "special_tokens": {{"<|endoftext|>": {len(ranks)}}}}} to'
            f" {beside}.",
        )
    described: Any = read_json(beside)
    match described:
        case {"pattern": str(pattern), "special_tokens": dict(specials)} if len(described) == 2:
            if all(isinstance(number, int) for number in specials.values()):
                return _from_ranks(ranks, specials, _readable_by_both(pattern, beside), path)
    raise DataError(
        'holds no {"pattern": "...", "special_tokens": {"...": id}}',
        where=beside,
        fix="Write both, and nothing else.",
    )


def _parse(content: bytes, path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if not line:
            continue
        token, _, rank = line.partition(b" ")
        try:
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise DataError(
                f"{line[:60]!r} is not a token in base64 and its rank", where=f"{path}:{number}"
            ) from None
    return ranks


def _from_ranks(
    ranks: Mapping[bytes, int], specials: Mapping[str, int], pattern: str, where: object
) -> ByteLevelBpe:
    """Converts ranks to the equivalent merges; ``bpe_merges.py`` proves that this is exact."""
    table = str.maketrans({chr(byte): character for byte, character in enumerate(byte_characters())})
    vocab = {token.decode("latin-1").translate(table): rank for token, rank in ranks.items()}
    missing = [byte for byte, character in enumerate(byte_characters()) if character not in vocab]
    repeated = len(vocab) + len(specials) - len({*vocab.values(), *specials.values()})
    if missing or repeated:
        fault = f"has no token for the byte {missing[0]}" if missing else f"gives {repeated} ids twice"
        raise DataError(fault, where=where, fix="Give the whole file of an encoding.")
    merges = merges_of(vocab)
    made = 256 + len(merges)
    return ByteLevelBpe(
        vocab=vocab,
        merges=merges,
        specials=dict(specials),
        pattern=pattern,
        whole_pieces=made < len(vocab),
    )


def _readable_by_both(pattern: str, where: object) -> str:
    """Returns the pattern, if tiktoken and ``tokenizers`` read all of it in the same way."""
    differs = sorted(set(_READ_DIFFERENTLY.findall(pattern)))
    if differs:
        raise DataError(
            f"its pattern has {' and '.join(differs)}, which tiktoken and tokenizers read differently, so"
            " it could not be saved for other programs",
            where=where,
            fix="Write the pattern without it: {1,3} for {1,3}+, \\A and \\z for ^ and $.",
        )
    return pattern


def _innermost(error: BaseException) -> BaseException:
    """Returns the first cause of a chain of network errors: requests wraps them several times."""
    while error.__context__ is not None:
        error = error.__context__
    return error
