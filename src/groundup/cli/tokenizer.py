"""``groundup tokenizer``: learn one, look at one, use one."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from groundup.core.errors import DataError
from groundup.core.log import logger
from groundup.core.progress import Progress, human_count
from groundup.core.vocabulary import padded_vocab_size
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.document import text_bytes
from groundup.corpus.read import read_files
from groundup.corpus.sources import SourceFile, find_source_files
from groundup.tokens.tokenizer import Tokenizer, load_tokenizer
from groundup.tokens.train_bpe import train_tokenizer


def train(
    *sources: Path,
    out: Path,
    vocab_size: int = 32768,
    key: str = "text",
    max_megabytes: float = 0,
    max_bad: float = 0.001,
) -> None:
    """Train a byte-level BPE tokenizer on documents.

    Reads text files and JSONL, plain, .gz or .zst, and writes DIR/tokenizer.json,
    DIR/tokenizer_config.json, DIR/vocab.json and DIR/merges.txt, which `transformers` loads too. The
    ids are 256 bytes, then what was learned, and <|endoftext|> last. The same documents give the same
    tokenizer; a gigabyte of mixed text is plenty.

    For example:

        groundup tokenizer train runs/corpus/documents.jsonl.zst --out runs/tokenizer --vocab-size 8192
        groundup tokenizer train wudao.json --key content --out runs/tokenizer --max-megabytes 1000

    Args:
        sources: Files, folders (searched to any depth) and quoted globs.
        out: The folder to write.
        vocab_size: Number of ids.
        key: The JSON field that holds the text.
        max_megabytes: Stop reading after so many megabytes of text; 0 reads everything.
        max_bad: Stop when more than this share of the records is bad, 0 to 1.
    """
    with BadRecords(BadRecordPolicy(max_bad=max_bad)) as bad:
        tokenizer = train_tokenizer(
            _texts(find_source_files(sources), key, max_megabytes * 1e6, bad), vocab_size=vocab_size
        )
        if not bad.good:
            raise DataError(f"no document under the key {key!r}", where=sources[0], fix="Check --key.")
    tokenizer.save(out)
    logger.info("%s: %s ids", out, f"{tokenizer.vocab_size:,}")
    sys.stdout.write(f"{out}\n")


def inspect(tokenizer: Path, *sources: Path, key: str = "text", max_megabytes: float = 10) -> None:
    """Show what a tokenizer is and, given documents, how well it compresses them.

    For example:

        groundup tokenizer inspect runs/tokenizer
        groundup tokenizer inspect runs/tokenizer corpus/documents.jsonl.zst

    Args:
        tokenizer: Folder or tokenizer.json.
        sources: Documents to measure on: files, folders and quoted globs.
        key: The JSON field that holds the text.
        max_megabytes: Measure on so many megabytes of text; 0 reads everything.
    """
    loaded = load_tokenizer(tokenizer)
    rows = [
        ("ids", f"{loaded.vocab_size:,}"),
        ("ids, padded to 128", f"{padded_vocab_size(loaded.vocab_size):,}"),
        ("end of document", f"{loaded.end_of_document_id} {loaded.decode([loaded.end_of_document_id])}"),
        ("fingerprint", loaded.fingerprint),
        ("longest", " ".join(repr(token) for token in _longest(loaded))),
    ]
    if sources:
        with BadRecords(BadRecordPolicy()) as bad:
            texts = _texts(find_source_files(sources), key, max_megabytes * 1e6, bad)
            num_bytes = num_tokens = 0
            for text in texts:
                num_bytes += text_bytes(text)
                num_tokens += len(loaded.encode_array(text))
        rows.append(("measured on", f"{human_count(num_bytes)}B in {bad.good:,} documents"))
        if num_tokens:
            rows.append(("bytes per token", f"{num_bytes / num_tokens:.3f}"))
    width = max(len(name) for name, _ in rows)
    sys.stdout.write("".join(f"{name:<{width}}  {value}\n" for name, value in rows))


def encode(tokenizer: Path, *text: str) -> None:
    """Print the ids of a text; without a text, of standard input.

    Special tokens written in the text are ordinary text.

    For example:

        groundup tokenizer encode runs/tokenizer "def hello_world():"
        groundup tokenizer encode runs/tokenizer < essay.txt

    Args:
        tokenizer: Folder or tokenizer.json.
        text: The text; several words are joined by blanks.
    """
    content = " ".join(text) if text else sys.stdin.read()
    sys.stdout.write(" ".join(map(str, load_tokenizer(tokenizer).encode(content))) + "\n")


def decode(tokenizer: Path, *ids: int) -> None:
    """Print the text of ids; without ids, of those on standard input.

    For example:

        groundup tokenizer decode runs/tokenizer 40 2883 4673
        groundup tokenizer encode runs/tokenizer "some text" | groundup tokenizer decode runs/tokenizer

    Args:
        tokenizer: Folder or tokenizer.json.
        ids: Token ids.
    """
    numbers = list(ids)
    if not ids:
        try:
            numbers = [int(word) for word in sys.stdin.read().split()]
        except ValueError as error:
            raise DataError(f"not a token id ({error})", where="standard input") from None
    sys.stdout.write(load_tokenizer(tokenizer).decode(numbers) + "\n")


def _texts(files: list[SourceFile], key: str, max_bytes: float, bad: BadRecords) -> Iterator[str]:
    """The texts, up to a number of bytes (0: all), with progress."""
    taken = 0
    with Progress("read", sum(file.size_bytes for file in files), "B") as progress:
        for document in read_files(files, text_key=key, bad_records=bad, on_read=progress.add):
            yield document.text
            taken += text_bytes(document.text)
            if max_bytes and taken >= max_bytes:
                return


def _longest(tokenizer: Tokenizer) -> list[str]:
    """Five of the longest tokens."""
    ids = sorted(
        range(tokenizer.vocab_size), key=lambda number: len(tokenizer.token_bytes(number)), reverse=True
    )
    return [tokenizer.decode([number]) for number in itertools.islice(ids, 5)]
