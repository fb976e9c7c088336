"""What a crawl has done, on disk: whatever kills it, it goes on after the last entry that is complete.

``.crawl/journal.jsonl`` gets a line for each URL that ended, and after each batch of them a line that says
how long the files were with these pages in them. What stands behind the last such line, in the journal and
in the files, was in flight when the crawl was killed: it is cut off, and fetched again.
"""

import os
import threading
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
import zstandard

from groundup.core.errors import ConfigError, DataError
from groundup.core.files import atomic_write, fsync_dir
from groundup.corpus.digest_set import DigestSet, digests
from groundup.corpus.page_outcomes import TRANSIENT, Outcome, OutcomeCounts

FORMAT = 1
_ZSTD_LEVEL = 5


class ShardFile:
    """A file that grows under a hidden name and gets its own when it is complete."""

    def __init__(self, path: Path, growing: Path) -> None:
        self.path = path
        self.size = 0
        self._growing = growing
        self._file: IO[bytes] | None = None

    def recover(self, size: int) -> None:
        """Goes on from a recorded size.

        Raises:
            DataError: The file is shorter than recorded, or gone.
        """
        self.size = size
        path = self.path if self.path.exists() else self._growing
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise DataError(
                f"the file has {found:,} bytes, the journal says {size:,}",
                where=path,
                fix="Put the file back, or crawl into another folder.",
            )
        if found > size:
            os.truncate(path, size)

    def append(self, content: bytes) -> None:
        """Writes, and makes it durable."""
        if not content:
            return
        if self._file is None:
            self._file = self._growing.open("ab")
        self._file.write(content)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.size += len(content)

    def complete(self) -> None:
        """Gives a file that holds something its name."""
        if self._file:
            self._file.close()
            self._file = None
        if self.size and not self.path.exists():
            self._growing.rename(self.path)
            fsync_dir(self.path.parent)


class Journal:
    """The journal, the shards of documents and of raw pages of one folder.

    Args:
        folder: Of the crawl, held by a lock.
        settings: That decide what the documents hold.
        documents_per_shard: Or pages, where there are no documents.
        retry: Forget URLs that failed for a reason that may have passed.

    Attributes:
        done: Digests of the URLs that have ended.
        counts: Of how they ended.

    Raises:
        ConfigError: The folder was begun with other settings.
        DataError: A file is damaged.
    """

    def __init__(
        self, folder: Path, settings: dict[str, Any], *, documents_per_shard: int, retry: bool = False
    ) -> None:
        self.folder = folder
        self.done = DigestSet()
        self.counts = OutcomeCounts()
        self.buffered_bytes = 0
        self._inner = folder / ".crawl"
        self._inner.mkdir(parents=True, exist_ok=True)
        self._path = self._inner / "journal.jsonl"
        self._per_shard = documents_per_shard
        self._failed: dict[int, str] = {}
        self._compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
        self._number, self._entries = 0, 0
        self._is_broken = False
        self._lock = threading.Lock()
        self._batch: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
        self._load(settings, retry=retry)
        self._file = self._path.open("ab")

    def add(self, outcome: Outcome, document: bytes = b"", page: bytes = b"") -> None:
        """Takes the end of a URL, with its document as a JSON line and its page as a WARC record."""
        record = orjson.dumps(outcome.as_record(), option=orjson.OPT_APPEND_NEWLINE)
        with self._lock:
            self._count(outcome)
            self._batch[0].append(record)
            self._batch[1].append(document)
            self._batch[2].append(page)
            self.buffered_bytes += len(document) + len(page) + len(record)

    def flush(self) -> None:
        """Makes what was added durable. Called by one thread at a time, while another may add."""
        with self._lock:
            outcomes, documents, pages = self._batch
            self._batch = ([], [], [])
            self.buffered_bytes = 0
        if not outcomes or self._is_broken:
            return
        self._is_broken = True  # unless all of it is written: nothing may come behind half a batch
        if any(documents):
            self._shard.append(self._compressor.compress(b"".join(documents)))
        self._warc.append(b"".join(pages))
        self._entries += sum(bool(document or page) for document, page in zip(documents, pages, strict=True))
        state = [self._number, self._entries, self._shard.size, self._warc.size]
        self._file.write(b"".join(outcomes) + orjson.dumps({"files": state}) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._entries >= self._per_shard:
            self._next_shard()
        self._is_broken = False

    def close(self, *, complete: bool) -> None:
        """Makes all durable; ``complete`` gives the last shard its name."""
        self.flush()
        if complete and self._entries:
            self._next_shard()
        self._file.close()

    def files(self) -> list[str]:
        """The complete shards, relative to the folder."""
        names = [*self.folder.glob("documents-*.jsonl.zst"), *self.folder.glob("warc/pages-*.warc.gz")]
        return sorted(path.relative_to(self.folder).as_posix() for path in names)

    def _open_shard(self) -> None:
        number = f"{self._number:05d}"
        (self.folder / "warc").mkdir(exist_ok=True)
        documents, pages = f"documents-{number}.jsonl.zst", f"pages-{number}.warc.gz"
        self._shard = ShardFile(self.folder / documents, self._inner / documents)
        self._warc = ShardFile(self.folder / "warc" / pages, self._inner / pages)

    def _next_shard(self) -> None:
        self._shard.complete()
        self._warc.complete()
        self._number, self._entries = self._number + 1, 0
        self._open_shard()

    def _count(self, outcome: Outcome, digest: int | None = None) -> None:
        if self._failed:
            if digest is None:
                digest = int(digests([outcome.url])[0])
            if earlier := self._failed.pop(digest, ""):
                self.counts.take_back(earlier)
        self.counts.add(outcome)

    def _load(self, settings: dict[str, Any], *, retry: bool) -> None:
        """Reads the journal and cuts off what is not complete, here and in the files."""
        state = [0, 0, 0, 0]
        if not self._path.exists():
            with atomic_write(self._path) as head:
                head.write(orjson.dumps({"format": FORMAT, "settings": settings}) + b"\n")
        with self._path.open("rb") as file:
            _require_same(self._path, file.readline(), settings)
            complete = file.tell()
            batch: list[Outcome] = []
            while (line := file.readline()).endswith(b"\n"):
                record = orjson.loads(line)
                if "files" not in record:
                    batch.append(Outcome(**record))
                    continue
                state, complete = record["files"], file.tell()
                self._take(batch, retry=retry)
                batch = []
        os.truncate(self._path, complete)
        if not retry:
            self._failed = {}
        self._recover(state)

    def _take(self, batch: list[Outcome], *, retry: bool) -> None:
        keys = digests([outcome.url for outcome in batch])
        has_failed = [outcome.kind in TRANSIENT for outcome in batch]
        for outcome, key, failed in zip(batch, keys.tolist(), has_failed, strict=True):
            self._count(outcome, key)
            if failed:
                self._failed[key] = outcome.kind
        self.done.add(keys[~np.array(has_failed, dtype=bool)] if retry else keys)

    def _recover(self, state: list[int]) -> None:
        self._number, self._entries, shard_size, warc_size = state
        self._open_shard()
        self._shard.recover(shard_size)
        self._warc.recover(warc_size)
        if self._shard.path.exists() or self._warc.path.exists():  # it was complete
            self._next_shard()
            self._shard.recover(0)
            self._warc.recover(0)


def _require_same(path: Path, line: bytes, settings: dict[str, Any]) -> None:
    try:
        head = orjson.loads(line)
        found = head["settings"] if head["format"] == FORMAT else None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        found = None
    if found is None:
        raise DataError("not the journal of a crawl of this version", where=path, fix="Name another folder.")
    for name, value in settings.items():
        if found.get(name) != value:
            raise ConfigError(
                f"the crawl in this folder was begun with {found.get(name)!r}, now it is {value!r}",
                where=f"{path.parent.parent}: {name}",
                fix="Give the same again, or name another folder.",
            )
