"""Manifests of datasets that were made from other datasets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from groundup.core.manifest import Manifest, describe_files, fingerprint
from groundup.core.vocabulary import require_same_tokenizer
from groundup.tokens.dataset.dataset_manifest import (
    describe_tokenizer,
    manifest_path,
    recorded_tokenizer,
    tokenizer_of,
)
from groundup.tokens.dataset.document_sources import origins_path
from groundup.tokens.dataset.indexed import IndexedDataset, bin_path, idx_path
from groundup.tokens.tokenizer.base import Tokenizer


def write_manifest(
    prefix: Path,
    tokenizer: Tokenizer,
    *,
    inputs: dict[str, str],
    counts: dict[str, Any],
    about: dict[str, Any],
    on_read: Callable[[int], None] | None = None,
) -> None:
    """Writes ``{prefix}.json``, and ``{prefix}_tokenizer`` beside it.

    Args:
        prefix: Of a finished dataset.
        tokenizer: That it was built with.
        inputs: Name -> fingerprint of what it was made from, in order.
        counts: Documents, tokens, and what else is known.
        about: What else a reader needs; dtype, origins and tokenizer are added.
        on_read: Told the number of bytes of each piece that was read for the checksums.
    """
    folder = f"{prefix.name}_tokenizer"
    tokenizer.save(prefix.with_name(folder))
    about = {key: value for key, value in about.items() if key != "origins"}  # those of another dataset
    names = [bin_path(prefix).name, idx_path(prefix).name]
    if origins_path(prefix).is_file():
        names.append(origins_path(prefix).name)
        about["origins"] = origins_path(prefix).name
    Manifest(
        kind="tokens",
        fingerprint=derived_fingerprint(inputs, tokenizer),
        inputs=inputs,
        counts=counts,
        files=describe_files(prefix.parent, names, on_read=on_read),
        about={
            **about,
            "dtype": str(IndexedDataset(prefix).dtype),
            "tokenizer": describe_tokenizer(tokenizer, folder),
        },
    ).write(manifest_path(prefix))


def derived_fingerprint(inputs: Mapping[str, str], tokenizer: Tokenizer) -> str:
    """The fingerprint of a dataset that is made of these inputs, in this order."""
    return fingerprint([list(inputs.items()), tokenizer.fingerprint])


def seen(paths: Iterable[Path]) -> str:
    """A hash of where files lie, their sizes and when they were changed; of those that are not there, too."""
    stats = [(path.resolve(), path.stat() if path.is_file() else None) for path in paths]
    return fingerprint(
        [[ascii(str(path)), found and [found.st_size, found.st_mtime_ns]] for path, found in stats]
    )


def added_counts(counts: Sequence[Mapping[str, Any]], num_parts: int) -> dict[str, Any]:
    """The sums of what all parts counted, nested counts too; nothing when a part counted nothing."""
    if not counts or len(counts) != num_parts:
        return {}
    keys = [key for key in counts[0] if all(key in other for other in counts)]
    return {key: _sum([count[key] for count in counts]) for key in keys}


def common_tokenizer(prefixes: Sequence[Path], named: Tokenizer | None) -> Tokenizer | None:
    """The tokenizer that all parts were built with, as their manifests and the user say.

    Args:
        prefixes: Of the parts, whose manifests agree.
        named: By the user; needed where a part has no manifest, which Megatron-LM does not write.

    Returns:
        None when a part does not tell and none was named.

    Raises:
        DataError: The one that was named is not that of a manifest.
    """
    described = [(part, mark) for part in prefixes if (mark := recorded_tokenizer(part))]
    if named is None:
        return tokenizer_of(prefixes[0]) if len(described) == len(prefixes) else None
    for part, recorded in described:
        require_same_tokenizer(
            recorded,
            named.fingerprint,
            where=part,
            what="was built with",
            other="the one named is",
            fix="Leave --tokenizer out, or name the right one.",
        )
    return named


def _sum(values: Sequence[Any]) -> Any:
    if all(isinstance(value, Mapping) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _sum([value[key] for value in values if key in value]) for key in keys}
    return [item for value in values for item in value] if isinstance(values[0], list) else sum(values)
