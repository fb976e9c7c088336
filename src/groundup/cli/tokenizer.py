"""``groundup tokenizer``: train, inspect, encode and decode."""

import errno
import heapq
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from groundup.cli.options import NO_TOKENIZER, TokenizerOptions, chosen_policy
from groundup.cli.printing import print_rows
from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.core.log import logger
from groundup.core.progress import Progress, human_count
from groundup.core.vocabulary import VOCAB_MULTIPLE, padded_vocab_size
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.document import text_bytes
from groundup.corpus.read_documents import read_files
from groundup.corpus.sources import SourceFile, find_source_files
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.gpt2 import GPT2_FINGERPRINT, gpt2_at_hand
from groundup.tokens.tokenizer.load_tokenizer import holds_tokenizer, load_gpt2_files
from groundup.tokens.tokenizer.train_bpe import train_tokenizer

_SPECIALS_SHOWN = 6
_SHOWN_LENGTH = 20
_FILES_NAMED = 3


def train(
    *sources: Path,
    out: Path,
    vocab_size: int = 32768,
    key: str = "text",
    max_megabytes: float = 0,
    bad_records: Literal["skip-malformed", "skip", "fail"] = "skip-malformed",
    max_bad: float = 0.001,
) -> None:
    """Train a byte-level BPE tokenizer on documents.

    Reads text files and JSONL, plain, .gz or .zst, and writes DIR/tokenizer.json,
    DIR/tokenizer_config.json, DIR/vocab.json and DIR/merges.txt, which `transformers` loads too. The
    ids are 256 bytes, then what was learned, and <|endoftext|> last. The same documents give the same
    tokenizer; a gigabyte of mixed text is plenty.

    For example:

        groundup tokenizer train runs/corpus --out runs/tokenizer --vocab-size 8192
        groundup tokenizer train wudao.json --key content --out runs/tokenizer --max-megabytes 1000

    Args:
        sources: Files, folders (searched to any depth) and quoted globs.
        out: The folder to write.
        vocab_size: Number of ids.
        key: The JSON field that holds the text.
        max_megabytes: Stop reading after so many megabytes of text; 0 reads everything.
        bad_records: What to do with records that cannot be read: leave them out, but stop at a damaged
            file (skip-malformed); also keep what stands before the damage in a file (skip); or stop at the
            first (fail).
        max_bad: Stop when more than this share of the records is bad, 0 to 1.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError("is a file", where=f"--out {out}", fix="Name a folder.")
    with BadRecords(chosen_policy(bad_records, max_bad), command="groundup tokenizer train") as bad:
        texts = _texts(find_source_files(sources), key, max_megabytes * 1e6, bad)
        tokenizer = train_tokenizer(texts, vocab_size=vocab_size)
    _save(tokenizer, out)
    logger.info("%s: %s ids", out, f"{tokenizer.vocab_size:,}")
    sys.stdout.write(f"{out}\n")


def inspect(
    *words: str,
    tokenizer: TokenizerOptions = NO_TOKENIZER,
    tp: int = 1,
    key: str = "text",
    max_megabytes: float = 10,
) -> None:
    """Show what a tokenizer is and, given documents, how well it compresses them, beside GPT-2's.

    A tokenizer is a folder or file (tokenizer.json, GPT-2's two files, SentencePiece's tokenizer.model,
    tiktoken's ranks) or a name: gpt2, bytes, tiktoken:cl100k_base, tiktoken:o200k_base. GPT-2's own files
    are taken from this machine if they are there, else fetched once and verified.

    For example:

        groundup tokenizer inspect runs/tokenizer
        groundup tokenizer inspect gpt2 --tp 8
        groundup tokenizer inspect runs/tokenizer corpus
        groundup tokenizer inspect --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt posts.jsonl

    Args:
        words: The tokenizer, unless a flag names it; then documents to measure on: files, folders and
            quoted globs.
        tp: Tensor-parallel degree: shows the size padded to 128 times it, as Megatron-LM pads.
        key: The JSON field that holds the text.
        max_megabytes: Measure on so many megabytes of text; 0 reads everything.
    """
    if tp < 1:
        raise ConfigError(f"{tp} is no degree", where="--tp", fix="Give 1 or more.")
    loaded, sources = tokenizer.load_or_first(words)
    rows = _description(loaded, tp)
    if sources:
        with BadRecords(BadRecordPolicy()) as bad:
            texts = _texts(find_source_files([Path(s) for s in sources]), key, max_megabytes * 1e6, bad)
            rows += _compression(loaded, texts)
    print_rows(rows)


def encode(
    *words: str,
    tokenizer: TokenizerOptions = NO_TOKENIZER,
) -> None:
    """Print the ids of a text; without a text, of standard input.

    Special tokens written in the text are ordinary text. What a tokenizer is: `groundup tokenizer inspect
    --help`.

    For example:

        groundup tokenizer encode runs/tokenizer "def hello_world():"
        groundup tokenizer encode gpt2 < essay.txt
        groundup tokenizer encode --vocab-file vocab.json --merge-file merges.txt "def hello_world():"

    Args:
        words: The tokenizer, unless a flag names it; then the text, whose words are joined by blanks.
    """
    loaded, text = tokenizer.load_or_first(words)
    content = " ".join(text) if text else sys.stdin.read()
    sys.stdout.write(" ".join(map(str, loaded.encode(content))) + "\n")


def decode(
    *words: str,
    tokenizer: TokenizerOptions = NO_TOKENIZER,
) -> None:
    """Print the text of ids; without ids, of those on standard input.

    For example:

        groundup tokenizer decode runs/tokenizer 40 2883 4673
        groundup tokenizer encode gpt2 "some text" | groundup tokenizer decode gpt2

    Args:
        words: The tokenizer, unless a flag names it; then token ids.
    """
    loaded, ids = tokenizer.load_or_first(words)
    where = "command line" if ids else "standard input"
    try:
        numbers = [int(word) for word in (ids or sys.stdin.read().split())]
    except ValueError as error:
        raise DataError(f"not a token id ({error})", where=where, fix="Give numbers.") from None
    sys.stdout.write(loaded.decode(numbers) + "\n")


def _description(tokenizer: Tokenizer, tp: int) -> list[tuple[str, str]]:
    """Describes what is known without documents."""
    size = tokenizer.vocab_size
    padded = padded_vocab_size(size)
    rows = [
        ("kind", tokenizer.kind),
        ("ids", f"{size:,}"),
        (f"ids, padded to {VOCAB_MULTIPLE}", f"{padded:,}"),
    ]
    if tp > 1:
        rows.append(
            (f"ids, padded to {VOCAB_MULTIPLE} x {tp}", f"{padded_vocab_size(size, VOCAB_MULTIPLE * tp):,}")
        )
    in_order = sorted(tokenizer.special_tokens.items(), key=lambda item: item[1])
    shown = ", ".join(f"{number} {name}" for name, number in in_order[:_SPECIALS_SHOWN])
    more = len(in_order) - _SPECIALS_SHOWN
    end = tokenizer.end_of_document_id
    return [
        *rows,
        ("special tokens", shown + (f", and {more} more" if more > 0 else "")),
        ("end of document", f"{end} {tokenizer.decode([end])}"),
        ("fingerprint", tokenizer.fingerprint),
        ("longest", "  ".join(_longest(tokenizer))),
    ]


def _compression(tokenizer: Tokenizer, texts: Iterable[str]) -> list[tuple[str, str]]:
    """Measures bytes per token on the texts, and those of GPT-2's tokenizer on the same."""
    is_gpt2 = tokenizer.fingerprint == GPT2_FINGERPRINT
    gpt2_paths = None if is_gpt2 else gpt2_at_hand()
    gpt2 = load_gpt2_files(*gpt2_paths) if gpt2_paths else None
    num_texts = num_same = num_bytes = num_tokens = num_gpt2_tokens = 0
    for text in texts:
        ids = tokenizer.encode_array(text)
        num_texts += 1
        num_bytes += text_bytes(text)
        num_tokens += len(ids)
        num_same += tokenizer.decode(ids.tolist()) == text
        if gpt2:
            num_gpt2_tokens += len(gpt2.encode_array(text))
    rows = [("measured on", f"{human_count(num_bytes)}B in {num_texts:,} documents")]
    if num_tokens:
        rows.append(("bytes per token", f"{num_bytes / num_tokens:.3f}"))
    if num_gpt2_tokens:
        more = num_tokens / num_gpt2_tokens - 1
        compared = f"{abs(more):.1%} {'more' if more > 0 else 'fewer'} tokens here"
        rows.append(("with GPT-2's", f"{num_bytes / num_gpt2_tokens:.3f}: {compared}"))
    elif not is_gpt2 and gpt2 is None:
        rows.append(
            ("with GPT-2's", "not measured: `groundup tokenizer inspect gpt2` fetches its files once")
        )
    rows.append(("same text back", f"{num_same:,} of {num_texts:,} documents"))
    return rows


def _texts(files: list[SourceFile], key: str, max_bytes: float, bad: BadRecords) -> Iterator[str]:
    """Reads the texts, up to a number of bytes (0: all), with progress."""
    taken = 0
    with Progress("read", sum(file.size_bytes for file in files), "B") as progress:
        for document in read_files(files, text_key=key, bad_records=bad, on_read=progress.add):
            yield document.text
            taken += text_bytes(document.text)
            if max_bytes and taken >= max_bytes:
                return
    bad.judge()  # before anything is made of a few texts
    if not bad.good:
        raise DataError(
            "there is no document in them" if len(files) > 1 else "there is no document in it",
            where=", ".join(str(file.path) for file in files[:_FILES_NAMED]),
            fix="Name files with text.",
        )


def _save(tokenizer: Tokenizer, folder: Path) -> None:
    file = folder / "tokenizer.json"
    before = file.read_bytes() if file.is_file() else b""
    was_there = holds_tokenizer(folder)
    try:
        tokenizer.save(folder)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise MachineError(
            "the disk is full" if full else f"cannot write the tokenizer ({error.strerror or error})",
            where=error.filename or folder,
            fix="Free some space or choose another folder with --out."
            if full
            else "Choose another folder with --out.",
        ) from error
    if was_there and file.read_bytes() != before:
        logger.warning("%s held another tokenizer: it was replaced", folder)


def _longest(tokenizer: Tokenizer) -> list[str]:
    """Picks four of the longest tokens: the beginning of each and its length."""
    contents = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    longest = heapq.nlargest(4, contents, key=len)
    texts = [content.decode("utf-8", errors="replace") for content in longest]
    return [
        repr(text) if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]!r}... ({len(content)} bytes)"
        for text, content in zip(texts, longest, strict=True)
    ]
