"""The manifest of a dataset: where it lies, which tokenizer it names, whether it is of a complete build."""

from pathlib import Path
from typing import Any

from groundup.core.errors import DataError
from groundup.core.manifest import Manifest
from groundup.core.vocabulary import padded_vocab_size
from groundup.tokens.files.indexed import strip_ending
from groundup.tokens.tokenizer import Tokenizer, holds_tokenizer, load_tokenizer


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


def complete_manifest(prefix: Path) -> Manifest | None:
    """The manifest of a dataset whose files are all there, in the sizes that it records; else None."""
    if not manifest_path(prefix).is_file():
        return None
    manifest = Manifest.read(manifest_path(prefix), "tokens")
    files = [(prefix.with_name(name), recorded["bytes"]) for name, recorded in manifest.files.items()]
    whole = all(path.is_file() and path.stat().st_size == size for path, size in files)
    tokenizer_there = holds_tokenizer(prefix.parent / manifest.about["tokenizer"]["folder"])
    return manifest if whole and tokenizer_there else None


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
