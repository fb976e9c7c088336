"""The manifest of a data set, ``{prefix}.json``: what it says, and what it is held to."""

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from groundup import __version__
from groundup.core.config_class import NotNegative, Positive, config
from groundup.core.errors import DataError
from groundup.core.log import logger
from groundup.core.manifest import (
    FileRecord,
    describe_files,
    find_damage,
    fingerprint,
    read_manifest,
    write_manifest,
)
from groundup.core.progress import Progress
from groundup.core.vocabulary import padded_vocab_size, require_same_tokenizer
from groundup.corpus.bad_records import BadRecordCounts
from groundup.corpus.overlap_report import Overlaps
from groundup.tokens.dataset.document_sources import document_sources_path
from groundup.tokens.dataset.indexed import IndexedDataset, bin_path, idx_path, strip_ending
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import holds_tokenizer, load_tokenizer


@config
class TokensCounts:
    """What was counted while a data set was built; None for what was not counted.

    Attributes:
        documents: As ``.idx`` records them.
        text_bytes: Of the documents in UTF-8.
        empty_documents: Left out.
    """

    documents: NotNegative
    tokens: NotNegative
    text_bytes: NotNegative | None = None
    empty_documents: NotNegative | None = None
    bad_records: BadRecordCounts | None = None


@config
class TokenizerDescription:
    """The tokenizer of a data set; ``folder`` lies beside its files."""

    folder: str
    kind: str
    fingerprint: str
    vocab_size: Positive
    padded_vocab_size: Positive
    end_of_document_id: NotNegative
    special_tokens: dict[str, NotNegative]


@config
class TokensAbout:
    """What a reader of a data set needs besides; None for what does not apply.

    Attributes:
        dtype: Of the tokens.
        key: The field of the documents that was tokenized.
        append_end_of_document: Whether each document ends with the end-of-document id.
        documents_open_with: The id that each document begins with, in data converted from flat shards.
        made_of: ``stat_fingerprint`` of the files that were merged.
        overlaps: What its corpora hold of the items of evaluation tasks, where all of them say it.
        origins: A file of earlier versions that told where documents came from; no longer read.
    """

    tokenizer: TokenizerDescription
    dtype: str
    key: str | None = None
    append_end_of_document: bool | None = None
    documents_open_with: NotNegative | None = None
    made_of: str | None = None
    overlaps: Overlaps | None = None
    origins: str | None = None


@config
class TokensManifest:
    """What a data set holds and what it was made from; fields as of every manifest."""

    kind: Literal["tokens"] = "tokens"
    fingerprint: str
    inputs: dict[str, str]
    counts: TokensCounts
    files: dict[str, FileRecord]
    about: TokensAbout
    format_version: Literal[1] = 1
    groundup_version: str = __version__


def manifest_path(prefix: Path) -> Path:
    """The manifest's file."""
    return prefix.with_name(prefix.name + ".json")


def find_manifest(prefix: Path) -> TokensManifest | None:
    """The manifest of a data set; None where there is none (Megatron-LM writes none)."""
    path = manifest_path(prefix)
    return read_manifest(path, TokensManifest) if path.is_file() else None


def tokenizer_of(path: Path, named: Path | None = None) -> Tokenizer:
    """The tokenizer that a data set was built with.

    Args:
        path: Prefix of a data set, with or without ending.
        named: The tokenizer that the user says it is; needed where there is no manifest, and checked
            against the manifest where there is one.

    Raises:
        DataError: Neither manifest nor name tells, or the tokenizer is not the one of the manifest.
    """
    prefix = strip_ending(path)
    manifest = find_manifest(prefix)
    if manifest is None:
        if named is not None:
            return load_tokenizer(named)
        raise DataError(
            "no manifest says which tokenizer the data was built with",
            where=manifest_path(prefix),
            fix="Name its folder as data.tokenizer, or build the data with `groundup tokens build`.",
        )
    recorded = manifest.about.tokenizer
    folder = named or prefix.parent / recorded.folder
    if named is None and not holds_tokenizer(folder):
        raise DataError(
            f"the tokenizer that {manifest_path(prefix)} names is not there",
            where=folder,
            fix="Put its folder there, or name it: --tokenizer, in a run data.tokenizer.",
        )
    tokenizer = load_tokenizer(folder)
    require_same_tokenizer(
        tokenizer.fingerprint,
        recorded.fingerprint,
        where=folder,
        what="holds",
        other=f"{prefix.name} was built with",
        fix="Put the right tokenizer there, or build the data again with `groundup tokens build`.",
    )
    return tokenizer


def recorded_tokenizer(prefix: Path) -> str | None:
    """Fingerprint of the tokenizer that a data set was built with; None without a manifest."""
    manifest = find_manifest(prefix)
    return manifest.about.tokenizer.fingerprint if manifest else None


def common_tokenizer(prefixes: Sequence[Path], named: Tokenizer | None) -> Tokenizer | None:
    """The tokenizer that all shards were built with; None when a shard does not tell and none is named.

    Args:
        prefixes: Of shards whose manifests agree.
        named: By the user; needed where a shard has no manifest.

    Raises:
        DataError: The one that was named is not that of a manifest.
    """
    described = [(prefix, recorded) for prefix in prefixes if (recorded := recorded_tokenizer(prefix))]
    if named is None:
        return tokenizer_of(prefixes[0]) if len(described) == len(prefixes) else None
    for prefix, recorded in described:
        require_same_tokenizer(
            recorded,
            named.fingerprint,
            where=prefix,
            what="was built with",
            other="the one named is",
            fix="Leave --tokenizer out, or name the right one.",
        )
    return named


def complete_manifest(prefix: Path) -> TokensManifest | None:
    """The manifest of a data set whose files are all there, in the sizes that it records; else None."""
    manifest = find_manifest(prefix)
    if manifest is None or not holds_tokenizer(prefix.parent / manifest.about.tokenizer.folder):
        return None
    sizes = {
        prefix.with_name(name): recorded.bytes for name, recorded in recorded_files(prefix, manifest).items()
    }
    whole = all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())
    return manifest if whole else None


def recorded_files(prefix: Path, manifest: TokensManifest) -> dict[str, FileRecord]:
    """Name -> size and checksum of a data set's files, as they are called now if it was renamed since."""
    before = next((name.removesuffix(".bin") for name in manifest.files if name.endswith(".bin")), "")
    return {
        prefix.name + name.removeprefix(before) if before and name.startswith(before) else name: recorded
        for name, recorded in manifest.files.items()
    }


def require_as_recorded(prefix: Path) -> None:
    """Compares the files of a data set with the sizes and checksums of its manifest; shows progress.

    Raises:
        DataError: The first file that differs.
    """
    files = recorded_files(prefix, read_manifest(manifest_path(prefix), TokensManifest))
    size = sum(recorded.bytes for recorded in files.values())
    with Progress(f"checksums of {prefix}", size, "B") as progress:
        damage = find_damage(prefix.parent, files, on_read=progress.add)
    if damage:
        raise DataError(
            damage, where=manifest_path(prefix), fix="Build the data again with `groundup tokens build`."
        )


def warn_of_replacement(prefix: Path, why: str = "") -> None:
    """Warns that what is about to be written replaces another data set, where there is one."""
    if not any(path(prefix).is_file() for path in (bin_path, idx_path)):
        return
    held = "not built by groundup"
    if manifest := find_manifest(prefix):
        held = f"{manifest.counts.documents:,} documents, {manifest.counts.tokens:,} tokens"
    logger.warning("%s: the dataset there (%s) is replaced%s", prefix, held, why and f": {why}")


def describe_tokenizer(tokenizer: Tokenizer, folder: str) -> TokenizerDescription:
    """What a manifest says of the tokenizer that lies in ``folder`` beside it."""
    return TokenizerDescription(
        folder=folder,
        kind=tokenizer.kind,
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        padded_vocab_size=padded_vocab_size(tokenizer.vocab_size),
        end_of_document_id=tokenizer.end_of_document_id,
        special_tokens=dict(tokenizer.special_tokens),
    )


def describe_dataset(
    prefix: Path,
    tokenizer: Tokenizer,
    *,
    inputs: dict[str, str],
    counts: Mapping[str, Any] = types.MappingProxyType({}),
    about: Mapping[str, Any] = types.MappingProxyType({}),
) -> None:
    """Writes the manifest of a finished data set that was made from others, and its tokenizer beside it.

    Args:
        prefix: Of the data set.
        tokenizer: That it was built with.
        inputs: Name -> fingerprint of what it was made from, in order.
        counts: Fields of ``TokensCounts`` other than documents and tokens.
        about: Fields of ``TokensAbout`` other than dtype and tokenizer.
    """
    folder = f"{prefix.name}_tokenizer"
    tokenizer.save(prefix.with_name(folder))
    paths = [
        path for path in (bin_path(prefix), idx_path(prefix), document_sources_path(prefix)) if path.is_file()
    ]
    with Progress(f"checksums of {prefix}", sum(path.stat().st_size for path in paths), "B") as progress:
        files = describe_files(prefix.parent, [path.name for path in paths], on_read=progress.add)
    data = IndexedDataset(prefix)
    manifest = TokensManifest(
        fingerprint=fingerprint([list(inputs.items()), tokenizer.fingerprint]),
        inputs=inputs,
        counts=TokensCounts(documents=data.num_recorded_documents, tokens=data.num_tokens, **counts),
        files=files,
        about=TokensAbout(dtype=str(data.dtype), tokenizer=describe_tokenizer(tokenizer, folder), **about),
    )
    write_manifest(manifest_path(prefix), manifest)
