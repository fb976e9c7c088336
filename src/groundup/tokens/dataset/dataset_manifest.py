"""The manifest of a dataset: where it lies, which tokenizer it names, whether it is of a complete build."""

from pathlib import Path
from typing import Any

from groundup.core.errors import DataError
from groundup.core.log import logger
from groundup.core.manifest import FileRecord, Manifest, find_damage
from groundup.core.progress import Progress
from groundup.core.vocabulary import padded_vocab_size, require_same_tokenizer
from groundup.tokens.dataset.indexed import bin_path, idx_path, strip_ending
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import holds_tokenizer, load_tokenizer


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
    if named is None and not holds_tokenizer(folder):
        raise DataError(
            f"the tokenizer that {where} names is not there",
            where=folder,
            fix="Put its folder there, or name it: --tokenizer, in a run data.tokenizer.",
        )
    tokenizer = load_tokenizer(folder)
    require_same_tokenizer(
        tokenizer.fingerprint,
        recorded["fingerprint"],
        where=folder,
        what="holds",
        other=f"{prefix.name} was built with",
        fix="Put the right tokenizer there, or build the data again with `groundup tokens build`.",
    )
    return tokenizer


def recorded_tokenizer(prefix: Path) -> str | None:
    """Fingerprint of the tokenizer that a dataset was built with; None without a manifest."""
    where = manifest_path(prefix)
    return Manifest.read(where, "tokens").about["tokenizer"]["fingerprint"] if where.is_file() else None


def complete_manifest(prefix: Path) -> Manifest | None:
    """The manifest of a dataset whose files are all there, in the sizes that it records; else None."""
    if not manifest_path(prefix).is_file():
        return None
    manifest = Manifest.read(manifest_path(prefix), "tokens")
    files = recorded_files(prefix, manifest)
    paths = {prefix.with_name(name): recorded.bytes for name, recorded in files.items()}
    whole = all(path.is_file() and path.stat().st_size == size for path, size in paths.items())
    tokenizer_there = holds_tokenizer(prefix.parent / manifest.about["tokenizer"]["folder"])
    return manifest if whole and tokenizer_there else None


def recorded_files(prefix: Path, manifest: Manifest) -> dict[str, FileRecord]:
    """Name -> size and checksum of a dataset's files, as they are called now if it was renamed since."""
    tokens = next((name for name in manifest.files if name.endswith(".bin")), "")
    before = tokens.removesuffix(".bin")
    return {
        prefix.name + name.removeprefix(before) if before and name.startswith(before) else name: recorded
        for name, recorded in manifest.files.items()
    }


def require_as_recorded(prefix: Path) -> None:
    """Whether the files of a dataset have the sizes and checksums of its manifest; shows progress.

    Raises:
        DataError: The first file that has not.
    """
    files = recorded_files(prefix, Manifest.read(manifest_path(prefix), "tokens"))
    size = sum(recorded.bytes for recorded in files.values())
    with Progress(f"checksums of {prefix}", size, "B") as progress:
        harm = find_damage(prefix.parent, files, on_read=progress.add)
    if harm:
        raise DataError(
            harm, where=manifest_path(prefix), fix="Build the data again with `groundup tokens build`."
        )


def warn_of_replacement(prefix: Path, why: str = "") -> None:
    """Says that what is about to be written replaces another dataset, where there is one."""
    if not any(path(prefix).is_file() for path in (bin_path, idx_path)):
        return
    held = "not built by groundup"
    if manifest_path(prefix).is_file():
        counts = Manifest.read(manifest_path(prefix), "tokens").counts
        held = f"{counts.get('documents', 0):,} documents, {counts.get('tokens', 0):,} tokens"
    logger.warning("%s: the dataset there (%s) is replaced%s", prefix, held, why and f": {why}")


def describe_tokenizer(tokenizer: Tokenizer, folder: str) -> dict[str, Any]:
    """What a manifest says of the tokenizer that lies in ``folder`` beside it."""
    return {
        "folder": folder,
        "kind": tokenizer.kind,
        "fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "padded_vocab_size": padded_vocab_size(tokenizer.vocab_size),
        "end_of_document_id": tokenizer.end_of_document_id,
        "special_tokens": dict(tokenizer.special_tokens),
    }
