"""``groundup tokens inspect``, ``verify``, ``merge`` and ``fetch``: files of tokens that are there."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from groundup.cli.options import NO_DATA_TOKENIZER, DataTokenizerOptions
from groundup.cli.printing import print_rows
from groundup.core.log import logger
from groundup.core.progress import human_count
from groundup.corpus.bad_records import summary_of
from groundup.tokens.dataset.check import check_ids, check_index
from groundup.tokens.dataset.dataset_manifest import common_tokenizer, find_manifest, require_as_recorded
from groundup.tokens.dataset.fetch import fetch_tokens
from groundup.tokens.dataset.flat import FlatShards
from groundup.tokens.dataset.indexed import IndexedDataset
from groundup.tokens.dataset.indexed_shards import IndexedShards
from groundup.tokens.dataset.merge import merge_tokens
from groundup.tokens.dataset.open import open_source
from groundup.tokens.dataset.token_source import TokenSource
from groundup.tokens.tokenizer.base import Tokenizer


def inspect(
    data: Path,
    *,
    tokenizer: DataTokenizerOptions = NO_DATA_TOKENIZER,
    documents: int = 3,
    characters: int = 300,
) -> None:
    """Show what token files hold: counts, lengths, and the first documents as text.

    Reads our .bin and .idx and Megatron-LM's, build-nanogpt's .npy and llm.c's .bin shards. Ours know
    their tokenizer; for the others, name it to see text.

    For example:

        groundup tokens inspect runs/tokens/corpus_text_document
        groundup tokens inspect my-gpt2_text_document --vocab-file vocab.json --merge-file merges.txt
        groundup tokens inspect edu_fineweb10B --tokenizer gpt2

    Args:
        data: Prefix of a .bin and .idx, a shard, a folder, or a quoted glob.
        documents: How many documents to show.
        characters: How much of each.
    """
    source, known = _open(data, tokenizer)
    rows = _rows(source, known)
    print_rows(rows)
    for title, begin, end in _beginnings(source, documents):
        ids = source.tokens[begin : min(end, begin + max(characters, 1))].tolist()
        text = known.decode(ids) if known else " ".join(map(str, ids))
        cut = " ..." if len(text) > characters or end - begin > len(ids) else ""
        sys.stdout.write(f"\n[{title}] {end - begin:,} tokens\n{text[:characters]}{cut}\n")


def verify(
    data: Path,
    *,
    tokenizer: DataTokenizerOptions = NO_DATA_TOKENIZER,
) -> None:
    """Check token files: their structure, that each id is in the vocabulary, and their checksums.

    For example:

        groundup tokens verify runs/tokens/corpus_text_document
        groundup tokens verify edu_fineweb10B --tokenizer gpt2

    Args:
        data: Prefix of a .bin and .idx, a shard, a folder, or a quoted glob.
    """
    source, known = _open(data, tokenizer)
    prefixes = _prefixes(source)
    for prefix in prefixes:
        check_index(IndexedDataset(prefix))
    if known:
        check_ids(source, known.vocab_size)
    described = {prefix: manifest for prefix in prefixes if (manifest := find_manifest(prefix))}
    for prefix, manifest in described.items():
        require_as_recorded(prefix)
        bad = manifest.counts.bad_records
        if bad and bad.bad:
            logger.warning("%s, when it was built: %s", prefix, summary_of(bad))
    unchecked = []
    if not known:
        unchecked.append("ids (name the --tokenizer)")
    if not described or len(described) < len(prefixes):
        unchecked.append("checksums (no manifest records them)")
    right = ["structure"] + ["ids"] * bool(known) + ["checksums"] * (len(unchecked) == (not known))
    said = f"{', '.join(right[:-1])} and {right[-1]} are" if len(right) > 1 else f"{right[0]} is"
    rest = f"; unchecked: {', '.join(unchecked)}" if unchecked else ""
    sys.stdout.write(f"{source.name}: {said} right{rest}\n")


def merge(
    *sources: Path,
    prefix: Path,
    tokenizer: DataTokenizerOptions = NO_DATA_TOKENIZER,
) -> None:
    """Merge token files into one PREFIX.bin and PREFIX.idx.

    Parts in Megatron-LM's format give byte for byte what its merge_datasets.py gives, in the order named; a
    folder stands for its parts in the order of their names. Shards of build-nanogpt and llm.c are converted:
    their stream of tokens stays as it is, and each document begins with the id that opens it there. Run
    again with unchanged files, it finds its work done (where the tokenizer is known).

    For example:

        groundup tokens merge parts/ --prefix data/all
        groundup tokens merge books_text_document wiki_text_document --prefix data/books_and_wiki
        groundup tokens merge 'edu_fineweb10B/*train*.npy' --prefix data/fineweb_train --tokenizer gpt2

    Args:
        sources: Prefixes, shards, folders and quoted globs, all of one kind and one tokenizer.
        prefix: Of what is written.
    """
    report = merge_tokens(
        sources,
        prefix,
        tokenizer=tokenizer.find(),
        end_of_document_id=tokenizer.end_of_document_id,
    )
    sys.stdout.write(
        f"{report.prefix}{' (was there already)' if report.reused else ''}\n"
        f"  {report.num_documents:,} documents, {report.num_tokens:,} tokens,"
        f" merged files: {report.num_shards:,}\n"
    )


def fetch(*urls: str, prefix: Path, connections: int = 8) -> None:
    """Fetch token files from object storage or a web server, to train on them from a local disk.

    A dataset in Megatron-LM's format comes with its manifest, document sources and tokenizer, where it
    has them. Files are verified by the checksums in the manifest; without one, by the sizes that headers
    tell. Each appears when it is whole. Run again, after Ctrl-C or a kill too, it verifies the files that
    are there and fetches the others; to continue within a file, use the store's own tool and then
    `groundup tokens verify`.

    Needs pip install 'groundup[remote]', and for S3 s3fs, for Google Cloud gcsfs, for Azure adlfs.
    Credentials are the store's own matter; for public buckets of S3 set FSSPEC_S3_ANON=true.

    For example:

        groundup tokens fetch s3://bucket/data/web_text_document --prefix /nvme/web_text_document
        groundup tokens fetch gs://bucket/edu_fineweb10B --prefix /nvme/edu_fineweb10B
        groundup tokens fetch https://host/shards/fineweb_train_{000001..000010}.bin --prefix /nvme/fineweb

    Args:
        urls: Prefixes of datasets, shards, folders and quoted globs, of one store. A web server lists no
            folder as a rule: there, name each prefix or shard.
        prefix: Of the dataset here, when there is one URL and it is a dataset's prefix; else the folder to
            put everything into, under the names it has there.
        connections: Files at a time.
    """
    report = fetch_tokens(urls, prefix, connections=connections)
    for path in report.paths:
        sys.stdout.write(f"{path}\n")
    there = f", {report.num_there:,} were there already" if report.num_there else ""
    right = "checksums are right" if report.with_checksums else "sizes are right (not all have a manifest)"
    sys.stdout.write(
        f"  {human_count(report.fetched_bytes)}B fetched ({report.num_fetched:,} files{there}); {right}\n"
    )


def _open(data: Path, options: DataTokenizerOptions) -> tuple[TokenSource, Tokenizer | None]:
    """Opens token files; the tokenizer is the one of the flags or, where they name none, of the manifests."""
    named = options.find()
    opening_id = options.end_of_document_id
    if opening_id is None and named:
        opening_id = named.end_of_document_id
    source = open_source(data, end_of_document_id=opening_id)
    prefixes = _prefixes(source)
    return source, common_tokenizer(prefixes, named) if prefixes else named


def _prefixes(source: TokenSource) -> list[Path]:
    if isinstance(source, IndexedDataset):
        return [source.prefix]
    return source.prefixes if isinstance(source, IndexedShards) else []


def _documents_known(source: TokenSource) -> bool:
    return not isinstance(source, FlatShards) or source.end_of_document_id is not None


def _beginnings(source: TokenSource, count: int) -> Iterator[tuple[str, int, int]]:
    """Yields name, first token and end of the first documents; of the whole where documents are not known."""
    if not _documents_known(source):
        yield "all", 0, len(source.tokens)
        return
    for number in range(min(count, source.num_documents)):
        yield str(number), source.token_begin(number), source.token_begin(number + 1)


def _rows(source: TokenSource, tokenizer: Tokenizer | None) -> list[tuple[str, str]]:
    """Names and values that describe the whole."""
    prefixes = _prefixes(source)
    rows = []
    unit = "document"
    if isinstance(source, FlatShards):
        rows.append(("shards", f"{len(source.shards):,}"))
    elif len(prefixes) > 1:
        rows.append(("shards", f"{len(prefixes):,}"))
    if not _documents_known(source):
        rows.append(("documents", "unknown: --tokenizer or --end-of-document-id tells where they begin"))
    elif prefixes:
        recorded = sum(IndexedDataset(prefix).num_recorded_documents for prefix in prefixes)
        rows.append(("documents", f"{recorded:,}"))
        if recorded != source.num_documents:
            unit = "sequence"
            rows.append(("sequences", f"{source.num_documents:,}, which training divides and shuffles"))
    else:
        rows.append(("documents", f"{source.num_documents:,}"))
    rows += [("tokens", f"{len(source.tokens):,}"), ("dtype", str(source.tokens[:0].dtype))]
    if _documents_known(source) and source.num_documents:
        marks = _percentiles(source.document_lengths(0, source.num_documents))
        rows.append((f"tokens in a {unit}", f"least, 25%, median, 75%, 99%, most: {marks}"))
    manifests = [find_manifest(prefix) for prefix in prefixes]
    text_bytes = [manifest.counts.text_bytes for manifest in manifests if manifest]
    known_bytes = [size for size in text_bytes if size is not None]
    if sum(known_bytes) and len(known_bytes) == len(prefixes) and len(source.tokens):
        rows.append(("bytes per token", f"{sum(known_bytes) / len(source.tokens):.3f}"))
    if tokenizer:
        rows.append(("tokenizer", f"{tokenizer.vocab_size:,} ids, {tokenizer.fingerprint}"))
    return rows


def _percentiles(lengths: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> str:
    places = [round(share * (len(lengths) - 1)) for share in (0, 0.25, 0.5, 0.75, 0.99, 1)]
    return " ".join(f"{length:,}" for length in np.partition(lengths, places)[places].tolist())
