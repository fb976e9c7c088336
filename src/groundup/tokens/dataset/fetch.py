"""Token files from object storage or a web server, to where training maps them."""

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from groundup.core.errors import ConfigError, DataError
from groundup.core.files import checksum, require_free_space
from groundup.core.lock import locked
from groundup.core.manifest import manifest_from, write_manifest
from groundup.core.object_store import Download, ObjectStore, is_pattern, name_of
from groundup.core.progress import Progress
from groundup.tokens.dataset.dataset_manifest import TokensManifest, manifest_path
from groundup.tokens.dataset.open import MEGATRONS_CACHE, open_source
from groundup.tokens.tokenizer.load_tokenizer import holds_tokenizer, load_tokenizer

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer.model"),
    "special_tokens_map.json",
)
"""What may be in a tokenizer's folder, which a web server does not list."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FetchReport:
    """What a fetch has done.

    Attributes:
        paths: Prefixes of datasets and paths of shards, all of them here and verified now.
        num_fetched: Files that were downloaded.
        num_there: Files that were there already.
        fetched_bytes: Of those that were downloaded.
        with_checksums: Whether manifests recorded the checksums of all; else sizes were compared.
    """

    paths: list[Path]
    num_fetched: int
    num_there: int
    fetched_bytes: int
    with_checksums: bool


def fetch_tokens(urls: Sequence[str], prefix: Path, *, connections: int = 8) -> FetchReport:
    """Downloads datasets and shards; files that are there and right are left alone.

    A dataset is its ``.bin`` and ``.idx``, and where there are any its document sources, its manifest and
    the folder of its tokenizer. Its index is downloaded after the rest, and its manifest is written last.

    Args:
        urls: Prefixes of datasets, shards, folders and patterns, all of one store.
        prefix: Of the dataset, when there is one URL and it is a dataset's prefix; else the folder to put
            everything into.
        connections: Files at a time.

    Raises:
        ConfigError: The URLs are not of one store that is known.
        DataError: Nothing is there, what arrived is damaged, or another file is in the way.
        MachineError: A library is missing, the store cannot be reached, or the disk is too small.
    """
    if connections < 1:
        raise ConfigError(f"{connections} connections", where="--connections", fix="Give 1 or more.")
    if len({url.partition("://")[:2] for url in urls}) != 1 or "://" not in urls[0]:
        raise ConfigError(
            f"expected URLs of one store, got {', '.join(urls) or 'none'}",
            where="command line",
            fix="Give e.g. s3://bucket/data/prefix.",
        )
    store = ObjectStore(urls[0])
    items = _find_items(store, urls, prefix)
    files = _distinct([one for item in items for one in item.files])
    lock = prefix.parent / f".{prefix.name}.fetch"
    with locked(lock, what=f"the fetch of {prefix}"), contextlib.ExitStack() as at_end:
        at_end.callback(lock.unlink)
        missing = _missing(files)
        require_free_space(prefix.parent, sum(one.size for one in missing), "fetching")
        _download(store, items, missing, connections)
        for item in items:
            open_source(item.target)
            if item.manifest is not None:
                write_manifest(manifest_path(item.target), item.manifest)
    return FetchReport(
        paths=[item.target for item in items],
        num_fetched=len(missing),
        num_there=len(files) - len(missing),
        fetched_bytes=sum(one.size for one in missing),
        with_checksums=all(item.manifest is not None for item in items),
    )


@dataclasses.dataclass(frozen=True)
class _Item:
    """A dataset or a shard, to be at ``target``, with its tokenizer, and with a manifest if it has one."""

    target: Path
    files: list[Download]
    manifest: TokensManifest | None = None


def _prefix(url: str) -> str:
    """The prefix that a URL means if it is of a dataset, with or without ending."""
    return url.removesuffix(".bin").removesuffix(".idx").rstrip("/")


def _find_items(store: ObjectStore, urls: Sequence[str], prefix: Path) -> list[_Item]:
    found = {one: is_dataset for url in urls for one, is_dataset in _find(store, url).items()}
    if prefix.name and len(urls) == 1 and found == {_prefix(urls[0]): True}:
        return [_dataset(store, _prefix(urls[0]), prefix)]
    return [
        (_dataset if is_dataset else _shard)(store, url, prefix / name_of(url))
        for url, is_dataset in found.items()
    ]


def _find(store: ObjectStore, url: str) -> dict[str, bool]:
    """The prefixes of datasets (True) and the shards (False) that a URL means."""
    if not is_pattern(url):
        if store.size(f"{_prefix(url)}.idx") is not None:
            return {_prefix(url): True}
        if name_of(url).endswith((".bin", ".npy")) and store.size(url) is not None:
            return {url: False}
    files = [file for file in store.files(url) if file.endswith((".bin", ".idx", ".npy"))]
    prefixes = {file.removesuffix(".idx") for file in files if file.endswith(".idx")}
    shards = {file for file in files if _prefix(file) not in prefixes and not MEGATRONS_CACHE.search(file)}
    if not prefixes | shards:
        raise DataError(
            "no token files (.bin, .idx, .npy) match this pattern"
            if is_pattern(url)
            else "is neither the prefix of a .bin and .idx, nor a shard, nor a folder that lists token files",
            where=url,
            fix="Check the URL, and that its files may be read.",
        )
    return {one: one in prefixes for one in sorted(prefixes | shards)}


def _shard(store: ObjectStore, url: str, target: Path) -> _Item:
    size = store.size(url)
    if size is None:
        raise DataError("may not be read", where=url)
    return _Item(target, [Download(url, target, size)])


def _dataset(store: ObjectStore, prefix: str, target: Path) -> _Item:
    folder, _, name = prefix.rpartition("/")
    if store.size(f"{prefix}.json") is None:
        sizes = {ending: store.size(prefix + ending) for ending in (".bin", ".sources.npz", ".idx")}
        if sizes[".bin"] is None:
            raise DataError("is not there, or may not be read", where=f"{prefix}.bin", fix="Put it there.")
        found = {ending: size for ending, size in sizes.items() if size is not None}
        return _Item(target, [Download(prefix + end, _beside(target, end), found[end]) for end in found])
    manifest = _manifest(store, f"{prefix}.json")
    tokenizer = manifest.about.tokenizer.folder
    if not all(file.startswith(f"{name}.") and _is_name(file) for file in manifest.files) or not _is_name(
        tokenizer
    ):
        raise DataError(
            f"describes {', '.join([*manifest.files, tokenizer])}, which are not all of {name_of(prefix)}",
            where=f"{prefix}.json",
            fix="The files there were renamed: give them their old names.",
        )
    recorded = {file.removeprefix(name): record for file, record in manifest.files.items()}
    for ending, record in recorded.items():
        if (size := store.size(prefix + ending)) != record.bytes:
            raise DataError(
                f"its manifest says {record.bytes:,} bytes, there are {size or 0:,}",
                where=prefix + ending,
                fix="Put the right file there.",
            )
    files = [
        Download(prefix + ending, _beside(target, ending), record.bytes, record.checksum)
        for ending, record in recorded.items()
    ]
    if not holds_tokenizer(target.with_name(tokenizer)):
        files += _tokenizer(store, f"{folder}/{tokenizer}", target.with_name(tokenizer))
    here = {_beside(target, ending).name: record for ending, record in recorded.items()}
    return _Item(target, files, dataclasses.replace(manifest, files=here))


def _beside(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _is_name(folder: str) -> bool:
    return folder not in ("", ".", "..") and "/" not in folder and "\\" not in folder


def _manifest(store: ObjectStore, url: str) -> TokensManifest:
    try:
        return manifest_from(json.loads(store.read(url)), TokensManifest, where=url)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not valid JSON ({error})", where=url) from None


def _tokenizer(store: ObjectStore, url: str, folder: Path) -> list[Download]:
    sizes = {name: store.size(f"{url}/{name}") for name in _TOKENIZER_FILES}
    found = [
        Download(f"{url}/{name}", folder / name, size) for name, size in sizes.items() if size is not None
    ]
    if not found:
        raise DataError(
            "the manifest names this tokenizer, and it is not there",
            where=url,
            fix="Put the tokenizer's folder there, beside the data.",
        )
    return found


def _download(
    store: ObjectStore, items: Sequence[_Item], files: Sequence[Download], connections: int
) -> None:
    """Downloads the tokenizers first, so that a wrong one is reported at once, and the indices last."""
    phases: tuple[list[Download], ...] = ([], [], [])
    for one in files:
        phases[0 if one.path.name in _TOKENIZER_FILES else 2 if one.path.suffix == ".idx" else 1].append(one)
    with Progress("fetch", sum(one.size for one in files), "B") as progress:
        store.get(phases[0], on_read=progress.add, connections=connections)
        _check_tokenizers(items)
        store.get(phases[1], on_read=progress.add, connections=connections)
        store.get(phases[2], on_read=progress.add, connections=connections)


def _check_tokenizers(items: Sequence[_Item]) -> None:
    """Refuses a tokenizer here that is not the one that the data was built with."""
    described = [(item.target, item.manifest.about.tokenizer) for item in items if item.manifest]
    for folder, expected in {(path.with_name(one.folder), one.fingerprint) for path, one in described}:
        if (found := load_tokenizer(folder).fingerprint) != expected:
            raise DataError(
                f"the tokenizer here is {found}, the data was built with {expected}",
                where=folder,
                fix="Remove it, and put the right one beside the data there; or choose another --prefix.",
            )


def _distinct(files: Sequence[Download]) -> list[Download]:
    """Each file once, for datasets may share a tokenizer."""
    by_path: dict[Path, Download] = {}
    for one in files:
        if (other := by_path.setdefault(one.path, one)) != one:
            raise DataError(
                f"has the name of {other.url}", where=one.url, fix="Fetch them into different folders."
            )
    return list(by_path.values())


def _missing(files: Sequence[Download]) -> list[Download]:
    """What is not here, as checksums tell where they are known.

    Raises:
        DataError: Another file has the name of one of them.
    """
    there = [one for one in files if one.path.exists()]
    wrong = [one for one in there if one.path.stat().st_size != one.size]
    known = [] if wrong else [one for one in there if one.checksum]
    if known:
        with Progress("checksums of what is there", sum(one.size for one in known), "B") as progress:
            wrong = [one for one in known if checksum(one.path, on_read=progress.add) != one.checksum]
    for one in wrong:
        raise DataError(
            f"is there and is not {one.url}",
            where=one.path,
            fix="Remove it, or choose another --prefix.",
        )
    return [one for one in files if one not in there]
