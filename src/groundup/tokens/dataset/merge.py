"""Many token files into one ``.bin``/``.idx``: shards of a job array, or the shards of other projects.

Shards in Megatron-LM's format are joined as its ``merge_datasets.py`` does, byte for byte, in the order
given. Shards without an index keep their stream of tokens as it is: there the end-of-document id opens a
document, and in the result each document begins with it, where Megatron-LM's and ours end with it.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from groundup.core.errors import ConfigError
from groundup.core.files import require_free_space
from groundup.core.log import logger
from groundup.core.manifest import fingerprint
from groundup.core.progress import Progress
from groundup.corpus.bad_records import BadRecordCounts
from groundup.corpus.overlap_report import joint_overlaps
from groundup.tokens.dataset.check import check_index, require_source_ids
from groundup.tokens.dataset.dataset_manifest import (
    TokensAbout,
    TokensCounts,
    common_tokenizer,
    complete_manifest,
    describe_dataset,
    find_manifest,
    manifest_path,
    require_as_recorded,
    warn_of_replacement,
)
from groundup.tokens.dataset.document_sources import document_sources_path, join_document_sources
from groundup.tokens.dataset.flat import FlatShards
from groundup.tokens.dataset.indexed import IndexedDataset, bin_path, idx_path, token_dtype
from groundup.tokens.dataset.indexed_shards import IndexedShards
from groundup.tokens.dataset.indexed_writer import IndexedWriter
from groundup.tokens.dataset.open import open_shards, token_files
from groundup.tokens.tokenizer.base import Tokenizer

_BATCH_TOKENS = 1 << 22


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeReport:
    """What was merged.

    Attributes:
        prefix: Of the result.
        num_shards: Files or pairs of files that went in.
        num_documents: As ``.idx`` records them.
        num_tokens: Of the result.
        reused: Whether an earlier merge of the same was found complete.
    """

    prefix: Path
    num_shards: int
    num_documents: int
    num_tokens: int
    reused: bool = False


def merge_tokens(
    sources: Sequence[Path],
    prefix: Path,
    *,
    tokenizer: Tokenizer | None = None,
    end_of_document_id: int | None = None,
) -> MergeReport:
    """Writes ``{prefix}.bin`` and ``.idx`` with all documents of the sources, in this order.

    A manifest is written too when the tokenizer is known: named here, or by the manifests of all shards.
    Document sources are joined when all shards have them. Where the manifest says that it was made of these
    same files, unchanged since, nothing is done.

    Args:
        sources: Prefixes, shards, folders and globs, all of one kind; a folder's files come in the order
            of their names.
        prefix: Of the result.
        tokenizer: That the data was built with.
        end_of_document_id: The id that opens the documents of shards, where it is not the tokenizer's.

    Raises:
        DataError: A shard is missing, malformed, or of another dtype or tokenizer than the first.
        ConfigError: The result would replace a shard, or nobody says where the documents of shards begin.
        MachineError: The disk cannot hold the result.
    """
    files = [file for source in sources for file in token_files(source)]
    _require_apart(files, prefix)
    opening = end_of_document_id
    if opening is None and tokenizer is not None:
        opening = tokenizer.end_of_document_id
    source = open_shards(files, end_of_document_id=opening)
    if isinstance(source, FlatShards):
        return _convert(source, prefix, tokenizer)
    if end_of_document_id is not None:
        raise ConfigError(
            f"{source.name} knows its documents by its .idx",
            where="--end-of-document-id",
            fix="Leave it out.",
        )
    assert isinstance(source, IndexedDataset | IndexedShards)
    return _join(source.prefixes if isinstance(source, IndexedShards) else [source.prefix], prefix, tokenizer)


def _require_apart(files: Sequence[Path], prefix: Path) -> None:
    ours = {bin_path(prefix).resolve(), idx_path(prefix).resolve(), prefix.resolve()}
    for file in files:
        if file.resolve() in ours:
            raise ConfigError(
                "the result would replace one of the files that are merged",
                where=file,
                fix="Choose another --prefix.",
            )


def _join(prefixes: list[Path], prefix: Path, named: Tokenizer | None) -> MergeReport:
    tokenizer = common_tokenizer(prefixes, named)
    if tokenizer is None:
        logger.warning("no manifest is written: a shard has none, and no tokenizer was named")
    every = (bin_path, idx_path, document_sources_path, manifest_path)
    made_of = stat_fingerprint(path(shard) for shard in prefixes for path in every)
    if tokenizer and (report := _found(prefix, len(prefixes), made_of, tokenizer)):
        return report
    warn_of_replacement(prefix)
    for shard in prefixes:
        check_index(IndexedDataset(shard))
        if manifest_path(shard).is_file():
            require_as_recorded(shard)  # the result's checksums would say that damage is right
    size = sum(bin_path(shard).stat().st_size for shard in prefixes)
    indices = sum(idx_path(shard).stat().st_size for shard in prefixes)
    require_free_space(prefix.parent, size + 2 * indices, "merging")
    with (
        Progress("merge", size, "B") as progress,
        IndexedWriter(prefix, vocab_size=0, dtype=IndexedDataset(prefixes[0]).dtype) as writer,
    ):
        for shard in prefixes:
            writer.add_dataset(IndexedDataset(shard), on_copied=progress.add)
        _remove_descriptions(prefix)
    _join_document_sources(prefixes, prefix)
    if tokenizer:
        manifests = [manifest for shard in prefixes if (manifest := find_manifest(shard))]
        whole = manifests if len(manifests) == len(prefixes) else []
        about = {**_common_about([manifest.about for manifest in whole]), "made_of": made_of}
        counts = _merge_counts([manifest.counts for manifest in whole])
        describe_dataset(prefix, tokenizer, inputs=_inputs(prefixes), counts=counts, about=about)
    return _report(writer, len(prefixes))


def _convert(source: FlatShards, prefix: Path, tokenizer: Tokenizer | None) -> MergeReport:
    if source.end_of_document_id is None:
        raise ConfigError(
            "where its documents begin is not known without the id that opens them",
            where=source.name,
            fix="Give --tokenizer, or --end-of-document-id (GPT-2: 50256, llm.c's Llama 3: 128000).",
        )
    if tokenizer:
        dtype, vocab_size = token_dtype(tokenizer.vocab_size), tokenizer.vocab_size
    else:
        dtype = np.dtype(np.int32) if source.dtype.itemsize == 4 else source.dtype.newbyteorder("=")
        vocab_size = int(np.iinfo(dtype).max) + 1
    stats = stat_fingerprint(shard.path for shard in source.shards)
    made_of = fingerprint([stats, source.end_of_document_id])
    if tokenizer and (report := _found(prefix, len(source.shards), made_of, tokenizer)):
        return report
    warn_of_replacement(prefix)
    require_free_space(
        prefix.parent, len(source.tokens) * dtype.itemsize + 40 * source.num_documents, "merging"
    )
    with (
        Progress("merge", len(source.tokens), "tokens") as progress,
        IndexedWriter(prefix, vocab_size=vocab_size, dtype=dtype) as writer,
    ):
        begin = 0
        while begin < source.num_documents:
            # Whole documents of about four million tokens together.
            until = min(source.token_begin(begin) + _BATCH_TOKENS, len(source.tokens)) - 1
            end = int(source.documents_at(until)) + 1
            tokens = source.tokens[source.token_begin(begin) : source.token_begin(end)]
            require_source_ids(source, source.token_begin(begin), tokens, vocab_size)
            writer.add(tokens, source.document_lengths(begin, end))
            progress.add(len(tokens))
            begin = end
        _remove_descriptions(prefix)
    if tokenizer:
        inputs = {
            shard.path.name: fingerprint([shard.path.name, shard.num_tokens]) for shard in source.shards
        }
        about = {
            "append_end_of_document": False,
            "documents_open_with": source.end_of_document_id,
            "made_of": made_of,
        }
        describe_dataset(prefix, tokenizer, inputs=inputs, about=about)
    return _report(writer, len(source.shards))


def _report(writer: IndexedWriter, num_shards: int) -> MergeReport:
    return MergeReport(
        prefix=writer.prefix,
        num_shards=num_shards,
        num_documents=writer.num_documents,
        num_tokens=writer.num_tokens,
    )


def _found(prefix: Path, num_shards: int, made_of: str, tokenizer: Tokenizer) -> MergeReport | None:
    """What an earlier merge of the same has left, if it is complete."""
    manifest = complete_manifest(prefix)
    if manifest is None or manifest.about.made_of != made_of:
        return None
    if manifest.about.tokenizer.fingerprint != tokenizer.fingerprint:
        return None
    return MergeReport(
        prefix=prefix,
        num_shards=num_shards,
        num_documents=manifest.counts.documents,
        num_tokens=manifest.counts.tokens,
        reused=True,
    )


def _remove_descriptions(prefix: Path) -> None:
    """Never leaves an old manifest or old document sources beside new files."""
    manifest_path(prefix).unlink(missing_ok=True)
    document_sources_path(prefix).unlink(missing_ok=True)


def _join_document_sources(prefixes: Sequence[Path], prefix: Path) -> None:
    paths = [document_sources_path(shard) for shard in prefixes]
    missing = [path for path in paths if not path.is_file()]
    if not missing:
        join_document_sources([(path, 0) for path in paths], document_sources_path(prefix))
    elif len(missing) < len(paths):
        logger.warning("no document sources are written: %s is not there", missing[0])


def _inputs(prefixes: Sequence[Path]) -> dict[str, str]:
    """Name of each shard -> its fingerprint; shards of other folders may have the same name."""
    inputs: dict[str, str] = {}
    for shard in prefixes:
        manifest = find_manifest(shard)
        name = shard.name if shard.name not in inputs else f"{shard.name} ({len(inputs)})"
        inputs[name] = manifest.fingerprint if manifest else IndexedDataset(shard).fingerprint
    return inputs


def stat_fingerprint(paths: Iterable[Path]) -> str:
    """Hash of paths, sizes and times of change; missing files count too."""
    stats = [(path.resolve(), path.stat() if path.is_file() else None) for path in paths]
    return fingerprint(
        [[ascii(str(path)), found and [found.st_size, found.st_mtime_ns]] for path, found in stats]
    )


def _merge_counts(counts: Sequence[TokensCounts]) -> dict[str, Any]:
    """The sums of what the manifests of all shards count besides documents and tokens."""
    sums: dict[str, Any] = {}
    for name in ("text_bytes", "empty_documents", "bad_records") if counts else ():
        values = [getattr(count, name) for count in counts]
        if None not in values:
            sums[name] = _merge_bad_records(values) if name == "bad_records" else sum(values)
    return sums


def _merge_bad_records(counts: Sequence[BadRecordCounts]) -> BadRecordCounts:
    reasons = dict.fromkeys(reason for count in counts for reason in count.by_reason)
    return BadRecordCounts(
        bad=sum(count.bad for count in counts),
        by_reason={reason: sum(count.by_reason.get(reason, 0) for count in counts) for reason in reasons},
        offenders=tuple(offender for count in counts for offender in count.offenders),
    )


def _common_about(abouts: Sequence[TokensAbout]) -> dict[str, Any]:
    """The settings in which the manifests of all shards agree, as fields of ``TokensAbout``."""
    names = ("key", "append_end_of_document", "documents_open_with") if abouts else ()
    values = {name: {getattr(about, name) for about in abouts} for name in names}
    common = {name: found.pop() for name, found in values.items() if len(found) == 1}
    return {**common, "overlaps": joint_overlaps([about.overlaps for about in abouts])}
