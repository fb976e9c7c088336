"""What token files a URL means, and which files belong to them."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from groundup.core.errors import DataError
from groundup.core.manifest import Manifest
from groundup.core.remote import RemoteFile, Store, is_web, name_of
from groundup.tokens.files.shards import MEGATRONS_CACHE

_ENDINGS = (".bin", ".origins", ".idx")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "special_tokens_map.json",
)
"""What may be in a tokenizer's folder, for web servers, which are not asked to list it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteTokens:
    """A dataset or a shard in a store.

    Attributes:
        url: Prefix of the dataset, or the shard.
        is_dataset: Whether it is in Megatron-LM's format.
        files: Name -> file; of a dataset its tokens, its origins where there are any, and its index.
        manifest: As it is there; None where there is none.
    """

    url: str
    is_dataset: bool
    files: dict[str, RemoteFile]
    manifest: Manifest | None = None

    @property
    def name(self) -> str:
        """Last part of the URL."""
        return name_of(self.url)

    @property
    def checksums(self) -> dict[str, str]:
        """Name -> checksum of each file that the manifest describes."""
        described = self.manifest.files if self.manifest else {}
        return {name: recorded["checksum"] for name, recorded in described.items()}

    @property
    def tokenizer_url(self) -> str:
        """The folder of its tokenizer, beside it."""
        assert self.manifest is not None
        return f"{self.url.rpartition('/')[0]}/{self.manifest.about['tokenizer']['folder']}"

    def manifest_as(self, name: str) -> Manifest | None:
        """The manifest of the same dataset under another name."""
        if self.manifest is None:
            return None
        about = dict(self.manifest.about)
        if "origins" in about:
            about["origins"] = f"{name}.origins"
        files = {name + key.removeprefix(self.name): value for key, value in self.manifest.files.items()}
        return dataclasses.replace(self.manifest, files=files, about=about)

    def tokenizer_files(self, store: Store) -> list[str]:
        """The URLs of the tokenizer's files; none where it is not there."""
        if not is_web(self.url):
            return store.files_in(self.tokenizer_url)
        candidates = [f"{self.tokenizer_url}/{name}" for name in _TOKENIZER_FILES]
        return [url for url in candidates if store.find(url)]


def prefix_of(url: str) -> str:
    """The prefix that a URL means if it is of a dataset, with or without ending."""
    return url.removesuffix(".bin").removesuffix(".idx").rstrip("/")


def find_tokens(store: Store, urls: Sequence[str]) -> list[RemoteTokens]:
    """The datasets and shards that URLs mean, each once, in the order named.

    Args:
        store: Of all URLs.
        urls: A prefix of a dataset (with or without ending), a shard, a folder, or a pattern of files.

    Raises:
        DataError: A URL means no token files, a manifest does not fit, or two have the same name.
        MachineError: The store cannot be reached.
    """
    found: dict[str, RemoteTokens] = {}
    for url in urls:
        for tokens in _meant(store, url):
            other = found.setdefault(tokens.name, tokens)
            if other.url != tokens.url:
                raise DataError(
                    f"has the name of {other.url}", where=tokens.url, fix="Fetch them into different folders."
                )
    return list(found.values())


def _meant(store: Store, url: str) -> Iterator[RemoteTokens]:
    if any(character in url for character in "*[") or ("?" in url and not is_web(url)):
        yield from _of_files(store, store.matches(url), f"no token file (.bin, .idx, .npy) matches {url}")
        return
    prefix = prefix_of(url)
    index = store.find(f"{prefix}.idx")
    if index:
        yield _dataset(store, prefix, index)
    elif (shard := store.find(url)) and name_of(url).endswith((".bin", ".npy")):
        yield RemoteTokens(url=url, is_dataset=False, files={shard.name: shard})
    else:
        reason = "is neither the prefix of a .bin and .idx, nor a shard, nor a folder with token files"
        if is_web(url):
            reason += " that this server lists"
        yield from _of_files(store, store.files_in(url), f"{url} {reason}, or may not be read")


def _of_files(store: Store, urls: Sequence[str], refusal: str) -> Iterator[RemoteTokens]:
    indices = {url.removesuffix(".idx") for url in urls if url.endswith(".idx")}
    shards = {
        url
        for url in urls
        if url.endswith((".bin", ".npy"))
        and url.removesuffix(".bin") not in indices
        and not MEGATRONS_CACHE.search(url)
    }
    if not indices and not shards:
        raise DataError(refusal, fix="Check the URL, and that its files may be read.")
    for url in sorted(indices | shards):
        file = store.find(f"{url}.idx" if url in indices else url)
        if file is None:
            raise DataError("may not be read", where=url)
        if url in indices:
            yield _dataset(store, url, file)
        else:
            yield RemoteTokens(url=url, is_dataset=False, files={file.name: file})


def _dataset(store: Store, prefix: str, index: RemoteFile) -> RemoteTokens:
    name = name_of(prefix)
    found = {f"{name}{ending}": store.find(prefix + ending) for ending in _ENDINGS[:-1]}
    files = {key: file for key, file in found.items() if file} | {index.name: index}
    if f"{name}.bin" not in files:
        raise DataError("is not there, or may not be read", where=f"{prefix}.bin", fix="Put it there.")
    described = store.find(f"{prefix}.json")
    if described is None:
        return RemoteTokens(url=prefix, is_dataset=True, files=files)
    manifest = _manifest(store, described.url)
    known = {f"{name}{ending}" for ending in _ENDINGS}
    if not set(manifest.files) <= known or _has_folders(manifest.about["tokenizer"]["folder"]):
        raise DataError(
            f"describes {', '.join(manifest.files)}, which are not all of {name}",
            where=described.url,
            fix="The files there were renamed: give them their old names.",
        )
    for key, recorded in manifest.files.items():
        size = files[key].size if key in files else None
        if size != recorded["bytes"]:
            given = "is not there" if size is None else f"has {size:,} bytes"
            raise DataError(
                f"{key} {given}, its manifest says {recorded['bytes']:,} bytes",
                where=described.url,
                fix="Put the right file there.",
            )
    return RemoteTokens(url=prefix, is_dataset=True, files=files, manifest=manifest)


def _manifest(store: Store, url: str) -> Manifest:
    try:
        value: Any = json.loads(store.content(url))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not valid JSON ({error})", where=url) from None
    return Manifest.of(value, "tokens", where=url)


def _has_folders(name: str) -> bool:
    return "/" in name or "\\" in name or name in ("", ".", "..")
