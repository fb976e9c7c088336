"""Documents to ``.bin`` and ``.idx``: read, tokenize in worker processes, write in the input's order.

The files equal those of Megatron-LM's ``preprocess_data.py`` (2023) byte for byte, for any number of
workers: documents without tokens are left out, special tokens written in a text are ordinary text.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from groundup.core.errors import ConfigError, DataError
from groundup.core.log import logger
from groundup.core.manifest import Manifest, describe_files, fingerprint
from groundup.core.progress import Progress, human_count
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.read import RawRecord, read_records
from groundup.corpus.sources import SourceFile, find_source_files
from groundup.tokens.indexed import IndexedWriter, bin_path, idx_path, strip_ending, token_dtype
from groundup.tokens.tokenizer import Tokenizer, load_tokenizer
from groundup.tokens.workers import BatchTokenizer, tokenize_batches

_BATCH_BYTES = 1 << 19


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokensReport:
    """What a build wrote.

    Attributes:
        prefixes: For each key, the prefix of its ``.bin``, ``.idx`` and manifest.
        counts: For each key, its manifest's counts.
        reused: Whether an earlier build was found complete.
        seconds: Taken.
    """

    prefixes: dict[str, Path]
    counts: dict[str, dict[str, Any]]
    reused: bool
    seconds: float


def build_tokens(
    sources: Sequence[Path],
    prefix: Path,
    tokenizer: Tokenizer,
    *,
    json_keys: Sequence[str] = ("text",),
    append_end_of_document: bool = True,
    workers: int | None = None,
    bad_records: BadRecordPolicy | None = None,
) -> TokensReport:
    """Writes ``{prefix}_{key}_document.bin``, ``.idx``, ``.json`` of each key and ``{prefix}_tokenizer/``.

    With the same settings and unchanged inputs it finds its work done and returns at once.

    Args:
        sources: JSONL and text files, folders and globs, plain or compressed.
        prefix: Path and beginning of the names of what is written.
        tokenizer: Its folder is written beside.
        json_keys: Fields to tokenize, each into files of its own; text files are read only with one key.
        append_end_of_document: Whether each document is closed by the end-of-document id.
        workers: Processes; None for one on each core, 0 for none.
        bad_records: What to do with malformed records.

    Raises:
        DataError: A source is missing, nothing was left to write, or as ``bad_records`` decides.
    """
    began = time.monotonic()
    _require_keys(json_keys)
    files = find_source_files(sources)
    made_from = {
        "sources": fingerprint([[str(file.path), file.size_bytes, file.mtime_ns] for file in files]),
        "tokenizer": tokenizer.fingerprint,
    }
    policy = bad_records or BadRecordPolicy()
    settings = {
        "append_end_of_document": append_end_of_document,
        "end_of_document_id": tokenizer.end_of_document_id,
        "bad_records": [policy.action, policy.max_bad],
    }
    prints = {key: fingerprint([made_from, settings, key, list(json_keys)]) for key in json_keys}
    prefixes = {key: prefix.with_name(f"{prefix.name}_{key}_document") for key in json_keys}
    there = {key: _finished(prefixes[key], prints[key]) for key in json_keys}
    if all(there.values()):
        counts = {key: manifest.counts for key, manifest in there.items() if manifest}
        seconds = time.monotonic() - began
        return TokensReport(prefixes=prefixes, counts=counts, reused=True, seconds=seconds)

    tokenizer_dir = prefix.with_name(f"{prefix.name}_tokenizer")
    tokenizer.save(tokenizer_dir)
    quarantine = prefix.with_name(f"{prefix.name}_quarantine.jsonl")
    with BadRecords(policy, quarantine_path=quarantine) as bad:
        counts = _write(files, prefixes, tokenizer, append_end_of_document, _number_of_workers(workers), bad)
    for key, count in counts.items():
        count["bad_records"] = bad.counts()
        path = prefixes[key]
        Manifest(
            kind="tokens",
            fingerprint=prints[key],
            inputs=made_from,
            counts=count,
            files=describe_files(path.parent, [bin_path(path).name, idx_path(path).name]),
            about={
                "key": key,
                "append_end_of_document": append_end_of_document,
                "dtype": str(token_dtype(tokenizer.vocab_size)),
                "tokenizer": {
                    "folder": tokenizer_dir.name,
                    "fingerprint": tokenizer.fingerprint,
                    "vocab_size": tokenizer.vocab_size,
                    "end_of_document_id": tokenizer.end_of_document_id,
                },
            },
        ).write(manifest_path(path))
    return TokensReport(prefixes=prefixes, counts=counts, reused=False, seconds=time.monotonic() - began)


def manifest_path(prefix: Path) -> Path:
    """Where the manifest of a dataset lies."""
    return prefix.with_name(prefix.name + ".json")


def tokenizer_of(path: Path, named: Path | None = None) -> Tokenizer:
    """The tokenizer that a dataset was built with.

    Args:
        path: Prefix of a dataset, with or without ending.
        named: The tokenizer that the user says it is; needed where no manifest tells (Megatron-LM
            writes none), and checked against the manifest where there is one.

    Raises:
        DataError: Neither manifest nor name tells, or the tokenizer is not the one of the manifest.
    """
    prefix = strip_ending(path)
    where = manifest_path(prefix)
    if not where.is_file():
        if named is not None:
            return load_tokenizer(named)
        raise DataError(
            "no manifest says which tokenizer the data was built with",
            where=where,
            fix="Name its folder as data.tokenizer, or build the data with `groundup tokens build`.",
        )
    recorded = Manifest.read(where, "tokens").about["tokenizer"]
    folder = named or prefix.parent / recorded["folder"]
    tokenizer = load_tokenizer(folder)
    if tokenizer.fingerprint != recorded["fingerprint"]:
        raise DataError(
            f"the tokenizer there is {tokenizer.fingerprint}, {prefix.name} was built with"
            f" {recorded['fingerprint']}",
            where=folder,
            fix="Put the right tokenizer there, or build the data again with `groundup tokens build`.",
        )
    return tokenizer


def _require_keys(json_keys: Sequence[str]) -> None:
    if not json_keys or len(set(json_keys)) != len(json_keys) or any("/" in key for key in json_keys):
        raise ConfigError(
            f"{' '.join(json_keys) or 'nothing'} is not a list of different field names",
            where="json_keys",
            fix="Give e.g. --json-keys text.",
        )


def _number_of_workers(workers: int | None) -> int:
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 0:
        raise ConfigError(f"{workers} processes", where="workers", fix="Give 0 or more.")
    return workers


def _finished(prefix: Path, expected: str) -> Manifest | None:
    """The manifest of a complete earlier build of the same; None when there is none."""
    if not manifest_path(prefix).is_file():
        return None
    manifest = Manifest.read(manifest_path(prefix), "tokens")
    sizes = {name: recorded["bytes"] for name, recorded in manifest.files.items()}
    complete = all(
        (prefix.parent / name).is_file() and (prefix.parent / name).stat().st_size == size
        for name, size in sizes.items()
    )
    tokenizer_there = (prefix.parent / manifest.about["tokenizer"]["folder"] / "tokenizer.json").is_file()
    return manifest if complete and tokenizer_there and manifest.fingerprint == expected else None


def _write(
    files: list[SourceFile],
    prefixes: dict[str, Path],
    tokenizer: Tokenizer,
    append_end_of_document: bool,
    num_workers: int,
    bad: BadRecords,
) -> dict[str, dict[str, Any]]:
    """Writes the files of all keys; returns the counts of each."""
    keys = tuple(prefixes)
    dtype = str(token_dtype(tokenizer.vocab_size))
    tokenize = BatchTokenizer(tokenizer, keys, append_end_of_document, dtype)
    counts = {key: {"documents": 0, "tokens": 0, "text_bytes": 0, "empty_documents": 0} for key in keys}
    began = time.monotonic()
    all_bytes = all_tokens = 0
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress("tokenize", sum(file.size_bytes for file in files), "B"))
        writers = {
            key: stack.enter_context(IndexedWriter(path, vocab_size=tokenizer.vocab_size))
            for key, path in prefixes.items()
        }
        records = read_records(files, bad_records=bad, on_read=progress.add)
        for batch, result in tokenize_batches(
            _batches(records, len(keys)), tokenize, num_workers=num_workers
        ):
            for index, reason, detail in result.bad:
                content = batch[index].content
                record = content.encode() if isinstance(content, str) else content
                bad.add(batch[index].where, reason, detail=detail, record=record)
            bad.add_good(result.num_good)
            for number, (key, writer) in enumerate(writers.items()):
                writer.add(result.tokens[number], result.lengths[number])
                counts[key]["documents"] += len(result.lengths[number])
                counts[key]["tokens"] += len(result.tokens[number])
                counts[key]["text_bytes"] += result.text_bytes[number]
                counts[key]["empty_documents"] += result.num_empty[number]
                all_tokens += len(result.tokens[number])
            all_bytes += sum(result.text_bytes)
            seconds = max(time.monotonic() - began, 1e-9)
            rate = (
                f"{all_bytes / seconds / 1e6:.1f} MB of text/s, {human_count(all_tokens / seconds)} tokens/s"
            )
            progress.add(0, rate)
        bad.judge()
        for key, count in counts.items():
            if not count["documents"]:
                raise DataError(
                    f"no text under the key {key!r}: {bad.good:,} records read, {bad.bad:,} bad,"
                    f" {count['empty_documents']:,} empty",
                    where=files[0].path,
                    fix="Check the sources and --json-keys.",
                )
        for path in prefixes.values():
            manifest_path(path).unlink(missing_ok=True)  # never an old manifest beside new files
    for key, count in counts.items():
        logger.info("%s: %s documents, %s tokens", key, f"{count['documents']:,}", f"{count['tokens']:,}")
    return counts


def _batches(records: Iterable[RawRecord], num_keys: int) -> Iterator[list[RawRecord]]:
    """Records in lists of about half a megabyte."""
    batch: list[RawRecord] = []
    size = 0
    for record in records:
        if num_keys > 1 and isinstance(record.content, str):
            raise ConfigError(
                "a text file has no keys, and several --json-keys were given",
                where=record.where,
                fix="Give one key, or leave text files out.",
            )
        batch.append(record)
        size += len(record.content)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
