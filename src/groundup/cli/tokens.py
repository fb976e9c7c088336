"""``groundup tokens``: tokenized datasets in Megatron-LM's format."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
import numpy as np

from groundup.core.errors import ConfigError, DataError
from groundup.core.manifest import Manifest, damage
from groundup.corpus.bad_records import BadRecordPolicy
from groundup.tokens.build import build_tokens, manifest_path, tokenizer_of
from groundup.tokens.indexed import IndexedDataset
from groundup.tokens.tokenizer import load_gpt2_files, load_tokenizer


def build(
    *sources: Path,
    prefix: Path,
    tokenizer: Path | None = None,
    vocab_file: Path | None = None,
    merge_file: Path | None = None,
    json_keys: Annotated[tuple[str, ...], cyclopts.Parameter(consume_multiple=True)] = ("text",),
    append_end_of_document: bool = True,
    workers: int | None = None,
    bad_records: Literal["skip", "quarantine", "fail"] = "skip",
    max_bad: float = 0.001,
) -> None:
    """Tokenize documents into Megatron-LM's .bin and .idx, in the order of the input.

    Writes PREFIX_KEY_document.bin and .idx, byte for byte what Megatron-LM's preprocess_data.py writes,
    PREFIX_KEY_document.json (what is in them and what they were made from) and PREFIX_tokenizer/. Run
    again with the same input and settings, it finds its work done.

    For example:

        groundup tokens build runs/corpus/documents.jsonl.zst --prefix runs/tokens/corpus \
--tokenizer runs/tokenizer
        groundup tokens build posts.jsonl --prefix data/posts --vocab-file gpt2-vocab.json \
--merge-file gpt2-merges.txt --json-keys title body --workers 8

    Args:
        sources: Text and JSONL files, plain, .gz or .zst; folders (searched to any depth); quoted globs.
        prefix: Path and beginning of the names of what is written.
        tokenizer: Folder with a tokenizer, or a tokenizer.json.
        vocab_file: GPT-2's vocabulary, instead of --tokenizer.
        merge_file: GPT-2's merges, with --vocab-file.
        json_keys: JSON fields to tokenize, each into files of its own.
        append_end_of_document: Close each document with the end-of-document id.
        workers: Processes; one for each core when left out, 0 for none beside this one.
        bad_records: What to do with lines and files that cannot be read: leave them out (skip), also
            copy them to PREFIX_quarantine.jsonl (quarantine), or stop at the first (fail).
        max_bad: Stop when more than this share of the records is bad, 0 to 1.
    """
    if tokenizer is not None and vocab_file is None and merge_file is None:
        loaded = load_tokenizer(tokenizer)
    elif tokenizer is None and vocab_file is not None and merge_file is not None:
        loaded = load_gpt2_files(vocab_file, merge_file)
    else:
        raise ConfigError(
            "which tokenizer: it takes --tokenizer, or --vocab-file together with --merge-file",
            where="command line",
            fix="Give --tokenizer FOLDER.",
        )
    report = build_tokens(
        sources,
        prefix,
        loaded,
        json_keys=json_keys,
        append_end_of_document=append_end_of_document,
        workers=workers,
        bad_records=BadRecordPolicy(action=bad_records, max_bad=max_bad),
    )
    for key, written in report.prefixes.items():
        counts = report.counts[key]
        per_token = counts["text_bytes"] / max(1, counts["tokens"])
        state = " (was there already)" if report.reused else ""
        sys.stdout.write(
            f"{written}{state}\n  {counts['documents']:,} documents, {counts['tokens']:,} tokens,"
            f" {counts['text_bytes'] / 1e6:.1f} MB of text ({per_token:.2f} bytes per token)\n"
        )
        if counts["empty_documents"]:
            sys.stdout.write(f"  {counts['empty_documents']:,} empty documents left out\n")


def inspect(prefix: Path, *, documents: int = 3, characters: int = 300) -> None:
    """Show what a dataset holds: counts, lengths, and the first documents as text.

    Reads what Megatron-LM wrote as well (then without text, unless a manifest names the tokenizer).

    For example:

        groundup tokens inspect runs/tokens/corpus_text_document

    Args:
        prefix: Prefix of the .bin and .idx, with or without the ending.
        documents: How many documents to show.
        characters: How much of each.
    """
    data = IndexedDataset(prefix)
    lengths = np.sort(data.lengths)
    rows = [
        ("documents", f"{data.num_documents:,}"),
        ("sequences", f"{data.num_sequences:,}"),
        ("tokens", f"{data.num_tokens:,}"),
        ("dtype", str(data.dtype)),
    ]
    if len(lengths):
        shares = (0, 0.25, 0.5, 0.75, 0.99, 1)
        marks = [f"{lengths[round(share * (len(lengths) - 1))]:,}" for share in shares]
        rows.append(("tokens in a sequence", "least, 25%, median, 75%, 99%, most: " + " ".join(marks)))
    manifest = manifest_path(data.prefix)
    tokenizer = tokenizer_of(data.prefix) if manifest.is_file() else None
    if tokenizer:
        counts = Manifest.read(manifest, "tokens").counts
        rows.append(("bytes per token", f"{counts['text_bytes'] / data.num_tokens:.3f}"))
        rows.append(("tokenizer", f"{tokenizer.vocab_size:,} ids, {tokenizer.fingerprint}"))
    width = max(len(name) for name, _ in rows)
    sys.stdout.write("".join(f"{name:<{width}}  {value}\n" for name, value in rows))
    for index in range(min(documents, data.num_sequences)):
        begin = data.sequence(index)[: max(characters, 1)].tolist()
        text = tokenizer.decode(begin) if tokenizer else " ".join(map(str, begin))
        shown = text[:characters] + (" ..." if len(text) > characters else "")
        sys.stdout.write(f"\n[{index}] {int(data.lengths[index]):,} tokens\n{shown}\n")


def verify(prefix: Path) -> None:
    """Check a dataset: its structure, that each id is in the vocabulary, and its checksums.

    For example:

        groundup tokens verify runs/tokens/corpus_text_document

    Args:
        prefix: Prefix of the .bin and .idx, with or without the ending.
    """
    data = IndexedDataset(prefix)
    where = manifest_path(data.prefix)
    if not where.is_file():
        data.check()
        sys.stdout.write(f"{data.prefix}: structure is right (no manifest: ids and checksums unchecked)\n")
        return
    manifest = Manifest.read(where, "tokens")
    data.check(vocab_size=tokenizer_of(data.prefix).vocab_size)
    harm = damage(data.prefix.parent, manifest.files)
    if harm:
        raise DataError(harm, where=where, fix="Build the data again with `groundup tokens build`.")
    sys.stdout.write(f"{data.prefix}: structure, ids and checksums are right\n")
