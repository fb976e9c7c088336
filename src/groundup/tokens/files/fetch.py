"""Token files from object storage or a web server, to where training maps them."""

import contextlib
import dataclasses
import errno
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from groundup.core.errors import ConfigError, DataError
from groundup.core.fetch import RANGE_BYTES, Fetch, Wanted
from groundup.core.files import atomic_write, checksum, fsync_dir, require_free_space
from groundup.core.lock import locked
from groundup.core.log import logger
from groundup.core.manifest import Manifest
from groundup.core.progress import Progress
from groundup.core.remote import Store
from groundup.tokens.files.flat_shards import FlatShard
from groundup.tokens.files.indexed import IndexedDataset, idx_path
from groundup.tokens.files.manifests import manifest_path
from groundup.tokens.files.remote_tokens import RemoteTokens, find_tokens, prefix_of
from groundup.tokens.tokenizer import load_tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class FetchReport:
    """What a fetch has brought.

    Attributes:
        paths: Prefixes of datasets and paths of shards, all of them here and verified now.
        num_fetched: Files of tokens that came in this run.
        num_there: Files that were there already.
        fetched_bytes: That came in this run.
        with_checksums: Whether manifests recorded the checksums of all files; else sizes were compared.
        seconds: Taken.
    """

    paths: list[Path]
    num_fetched: int
    num_there: int
    fetched_bytes: int
    with_checksums: bool
    seconds: float


def fetch_tokens(
    urls: Sequence[str], prefix: Path, *, connections: int = 8, range_bytes: int = RANGE_BYTES
) -> FetchReport:
    """Copies datasets and shards from a store; what a killed run has fetched is taken up.

    A dataset is its ``.bin`` and ``.idx``, and where there are any its ``.origins``, its manifest and the
    folder of its tokenizer. Files under way lie in ``{prefix}_fetch/`` and move when they are whole and
    verified; those that are there and verified are not fetched again.

    Args:
        urls: Prefixes of datasets, shards, folders and patterns, all of one store.
        prefix: Of the dataset, when there is one URL and it is a dataset's prefix; else the folder to put
            everything into.
        connections: Requests at a time.
        range_bytes: Of one request.

    Raises:
        ConfigError: The URLs are of different stores, or of none that is known.
        DataError: Nothing is there, what came is damaged, or another dataset is in the way.
        MachineError: A library is missing, the store cannot be reached, or the disk is too small.
    """
    began = time.monotonic()
    if connections < 1:
        raise ConfigError(f"{connections} connections", where="--connections", fix="Give 1 or more.")
    store = _one_store(urls)
    found = find_tokens(store, urls)
    single = len(urls) == 1 and found[0].is_dataset and found[0].url == prefix_of(urls[0])
    folder = prefix.parent if single else prefix
    staging = folder / f"{prefix.name}_fetch"  # on the same disk, so that finished files only move
    items = [_Item(tokens, prefix if single else folder / tokens.name, staging) for tokens in found]
    with locked(staging / "lock", what=f"the fetch of {prefix}"):
        wanted = _missing(items)
        fetch = Fetch(store, wanted, staging, range_bytes=range_bytes)
        missing_bytes = fetch.missing_bytes
        require_free_space(folder, missing_bytes, "fetching")
        _take_tokenizers(items, store)
        with contextlib.closing(fetch.run(connections)) as brought:
            left = {file.name for file in wanted}
            for item in items:
                while left & item.names:
                    left.discard(next(brought).name)
                item.place()
            assert next(brought, None) is None  # and so its progress ends
        _remove_staging(staging)
    return FetchReport(
        paths=[item.target for item in items],
        num_fetched=len(wanted),
        num_there=sum(len(item.tokens.files) for item in items) - len(wanted),
        fetched_bytes=missing_bytes,
        with_checksums=all(item.tokens.manifest is not None for item in items),
        seconds=time.monotonic() - began,
    )


class _Item:
    """A dataset or shard, where it goes, and which of its files are there."""

    def __init__(self, tokens: RemoteTokens, target: Path, staging: Path) -> None:
        self.tokens = tokens
        self.target = target
        self._staging = staging
        self._manifest = tokens.manifest_as(target.name)
        self._to_place: list[str] = []

    @property
    def names(self) -> set[str]:
        """Of its files, here."""
        return {self.local(name).name for name in self.tokens.files}

    @property
    def tokenizer(self) -> tuple[Path, str] | None:
        """Where its tokenizer goes, and its fingerprint."""
        if self._manifest is None:
            return None
        recorded = self._manifest.about["tokenizer"]
        return self.target.with_name(recorded["folder"]), recorded["fingerprint"]

    def local(self, name: str) -> Path:
        """Where a file of this name goes."""
        return self.target.with_name(self.target.name + name.removeprefix(self.tokens.name))

    def missing(self, progress: Progress) -> Iterator[Wanted]:
        """The files that are not here yet.

        Raises:
            DataError: A file of this name is of something else.
        """
        there = manifest_path(self.target) if self.tokens.is_dataset else None
        same = there is not None and there.is_file() and self._manifest == Manifest.read(there, "tokens")
        for name, remote in self.tokens.files.items():
            local = self.local(name)
            expected = self.tokens.checksums.get(name, "")
            if local.exists():
                if local.stat().st_size == remote.size and (
                    not expected or checksum(local, on_read=progress.add) == expected
                ):
                    continue
                if not same:
                    raise DataError(
                        f"is there and is not {remote.url}",
                        where=local,
                        fix="Remove it, or choose another --prefix.",
                    )
                logger.warning("%s is damaged: it is fetched again", local)
            self._to_place.append(local.name)
            yield Wanted(remote, local.name, expected)

    def take_tokenizer(self, store: Store) -> None:
        """Fetches the tokenizer's folder, where the manifest names one that is not here.

        Raises:
            DataError: It is not there, or it is not the one that the data was built with.
        """
        if self.tokenizer is None:
            return
        folder, expected = self.tokenizer
        if folder.exists():
            if load_tokenizer(folder).fingerprint == expected:
                return
            raise DataError(
                f"is another tokenizer than that of {self.tokens.url}",
                where=folder,
                fix="Choose a --prefix in another folder.",
            )
        partial = self._staging / f"{folder.name}.tokenizer"
        for url in self.tokens.tokenizer_files(store):
            with atomic_write(partial / url.rpartition("/")[2]) as file:
                file.write(store.content(url))
        if not partial.is_dir():
            raise DataError(
                "the manifest names this tokenizer, and it is not there",
                where=self.tokens.tokenizer_url,
                fix="Put the tokenizer's folder there, beside the data.",
            )
        found = load_tokenizer(partial).fingerprint
        if found != expected:
            raise DataError(
                f"the tokenizer there is {found}, the data was built with {expected}",
                where=self.tokens.tokenizer_url,
                fix="Put the right tokenizer there.",
            )
        partial.rename(folder)

    def place(self) -> None:
        """Moves the fetched files to where they belong, the index behind the tokens, the manifest last.

        Raises:
            DataError: Without a manifest: the headers do not tell the sizes that the files have.
        """
        if self._to_place and self._manifest is None and not self.tokens.is_dataset:
            FlatShard.read(self._staging / self.target.name)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if self._to_place and self.tokens.is_dataset:
            manifest_path(self.target).unlink(missing_ok=True)
            if idx_path(self.target).name in self._to_place:
                idx_path(self.target).unlink(missing_ok=True)
        for name in sorted(self._to_place, key=lambda name: name.endswith(".idx")):
            (self._staging / name).rename(self.target.with_name(name))
            (self._staging / f"{name}.ranges").unlink()
        fsync_dir(self.target.parent)
        if self.tokens.is_dataset:
            _require_whole(self.target, self.tokens.url)
        if self._manifest is not None:
            self._manifest.write(manifest_path(self.target))


def _one_store(urls: Sequence[str]) -> Store:
    hosts = dict.fromkeys("/".join(url.split("/")[:3]) for url in urls)
    wrong = [f"{url} is no URL" for url in urls if "://" not in url]
    if wrong or not urls:
        raise ConfigError(
            wrong[0] if wrong else "no URL was named",
            where="command line",
            fix="Give e.g. s3://bucket/data/prefix.",
        )
    if len(hosts) > 1:
        raise ConfigError(
            f"URLs of different stores: {', '.join(hosts)}",
            where="command line",
            fix="Fetch from one at a time.",
        )
    return Store(urls[0])


def _missing(items: Sequence[_Item]) -> list[Wanted]:
    """What is not here, as checksums tell where they are known."""
    known = [item.local(name) for item in items for name in item.tokens.checksums]
    size = sum(path.stat().st_size for path in known if path.is_file())
    if not size:
        return [wanted for item in items for wanted in item.missing(Progress("", 0, "B"))]
    with Progress("checksums of what is there", size, "B") as progress:
        return [wanted for item in items for wanted in item.missing(progress)]


def _take_tokenizers(items: Sequence[_Item], store: Store) -> None:
    """Fetches each tokenizer once, before the tokens: what is wrong with them is told at once."""
    taken = set()
    for item in items:
        if item.tokenizer not in taken:
            item.take_tokenizer(store)
            taken.add(item.tokenizer)


def _require_whole(prefix: Path, url: str) -> None:
    try:
        IndexedDataset(prefix)
    except DataError as error:
        idx_path(prefix).unlink()
        raise DataError(
            f"its files do not belong together ({error.what})", where=url, fix="Put the right ones there."
        ) from None


def _remove_staging(staging: Path) -> None:
    (staging / "lock").unlink()
    try:
        staging.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        logger.warning("%s holds what an earlier fetch of other files has left: remove it", staging)
