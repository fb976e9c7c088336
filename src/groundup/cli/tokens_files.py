"""``groundup tokens inspect`` and ``verify``: what token files hold, and whether it is sound."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from groundup.cli.options import NO_DATA_TOKENIZER, DataTokenizerOptions
from groundup.cli.printing import print_rows
from groundup.core.log import logger
from groundup.corpus.bad_records import summary_of
from groundup.tokens.dataset.check import check_ids, check_index
from groundup.tokens.dataset.dataset_manifest import common_tokenizer, find_manifest, require_as_recorded
from groundup.tokens.dataset.flat import FlatShards
from groundup.tokens.dataset.indexed import IndexedDataset
from groundup.tokens.dataset.indexed_shards import IndexedShards
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
