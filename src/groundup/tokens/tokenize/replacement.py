"""What a build finds under the names that it writes: its leftovers, another dataset, or somebody's own."""

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path

from groundup.core.errors import ConfigError
from groundup.core.manifest import read_manifest
from groundup.tokens.dataset.dataset_manifest import (
    TokensManifest,
    find_manifest,
    manifest_path,
    warn_of_replacement,
)
from groundup.tokens.dataset.indexed import idx_path
from groundup.tokens.tokenizer.base import Tokenizer


def require_replaceable(
    prefix: Path, fingerprint: str, made_from: Mapping[str, str], *, is_begun: bool
) -> None:
    """Says that a build replaces another dataset; refuses to where nobody could build that one again.

    Args:
        prefix: Of the dataset that is written.
        fingerprint: Of its manifest.
        made_from: Fingerprints of its sources and its tokenizer.
        is_begun: Whether an earlier run has left finished parts; killed while it joined them, it leaves
            files without a manifest.

    Raises:
        ConfigError: The dataset there was not built here.
    """
    if before := find_manifest(prefix):
        warn_of_replacement(prefix, _difference(before, fingerprint, made_from))
    elif idx_path(prefix).is_file() and not is_begun:
        raise ConfigError(
            "a dataset is there that no manifest describes, so it was not built here",
            where=idx_path(prefix),
            fix="Choose another --prefix, or remove it.",
        )


def require_own_tokenizer(
    prefix: Path, written: Sequence[Path], tokenizer_dir: Path, tokenizer: Tokenizer
) -> None:
    """Refuses a build that takes away the tokenizer of a dataset that stays.

    Args:
        prefix: Of the build.
        written: Prefixes of the datasets that it writes, one for each key.
        tokenizer_dir: Where it writes its tokenizer.
        tokenizer: That one.

    Raises:
        ConfigError: A dataset of another key was built with another tokenizer, which lies there.
    """
    for path in prefix.parent.glob(f"{glob.escape(prefix.name)}_*_document.json"):
        if path in map(manifest_path, written):
            continue
        recorded = read_manifest(path, TokensManifest).about.tokenizer
        if recorded.folder == tokenizer_dir.name and recorded.fingerprint != tokenizer.fingerprint:
            raise ConfigError(
                f"it would be replaced by another tokenizer, and {path.with_suffix('')} was built with it",
                where=tokenizer_dir,
                fix="Choose another --prefix.",
            )


def _difference(before: TokensManifest, fingerprint: str, made_from: Mapping[str, str]) -> str:
    """What is different about the dataset that is there."""
    if before.fingerprint == fingerprint:
        return "it is not whole"
    if before.inputs.get("sources") != made_from["sources"]:
        return "it was made from other files, or they were changed since"
    if before.inputs.get("tokenizer") != made_from["tokenizer"]:
        return "it was made with another tokenizer"
    return "it was made with other settings"
