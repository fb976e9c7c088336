"""Shards: files of documents that a task reads and writes, with what was dropped and the counts."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson
import zstandard

from groundup.core.compressed import open_decompressed
from groundup.core.executor.tasks import Done
from groundup.core.files import atomic_write
from groundup.corpus.corpus_manifest import shard_name
from groundup.corpus.document import Document, from_json_line, text_bytes, to_json_line
from groundup.corpus.report import Tally

_ZSTANDARD_LEVEL = 3
_SHOWN_CHARACTERS = 200
ENDING = ".jsonl.zst"


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """One of the shards that a stage leaves.

    Attributes:
        folder: Of the stage.
        number: From 0.
        total: Of the stage.
        fingerprint: Of all that decides its content.
    """

    folder: Path
    number: int
    total: int
    fingerprint: str

    @property
    def name(self) -> str:
        """Of its task."""
        return shard_name("documents", self.number, self.total)

    @property
    def path(self) -> Path:
        """Its documents, one a line (``document.to_json_line``)."""
        return self.folder / f"{self.name}{ENDING}"

    @property
    def excluded_path(self) -> Path:
        """What was dropped on the way from the stage before, one a line."""
        return self.folder / f"{shard_name('excluded', self.number, self.total)}{ENDING}"


class ShardWriter:
    """Writes the documents of a shard, and what is dropped; counts both. See ``write_shard``."""

    def __init__(
        self,
        shard: Shard,
        documents: Callable[[bytes], object],
        excluded: Callable[[bytes], object],
        keep_dropped: bool,
    ) -> None:
        self.tally = Tally()
        self._shard = shard
        self._documents = documents
        self._excluded = excluded
        self._keep_dropped = keep_dropped

    def keep(self, document: Document) -> None:
        """Writes a document."""
        self.keep_line(to_json_line(document), text_bytes(document.text))

    def keep_line(self, line: bytes, size_bytes: int) -> None:
        """Writes a document that is a line already.

        Args:
            line: As ``to_json_line`` gives it.
            size_bytes: Of its text.
        """
        self.tally.keep(size_bytes)
        self._documents(line)

    def drop(
        self, document: Document, rule: str, reason: str, detail: str = "", *, because: str = ""
    ) -> None:
        """Leaves a document out.

        Args:
            document: What is left out.
            rule: The stage or filter.
            reason: One of few.
            detail: What is particular to some, by which they are counted too.
            because: Which other document or evaluation item decided it.
        """
        self.tally.drop(rule, reason, document.id, text_bytes(document.text), detail)
        text = document.text if self._keep_dropped else document.text[:_SHOWN_CHARACTERS]
        line: dict[str, Any] = {
            "id": document.id,
            "url": document.url,
            "rule": rule,
            "reason": reason,
            "text": text,
        }
        if detail:
            line["detail"] = detail
        if because:
            line["because"] = because
        if self._keep_dropped:
            line["meta"] = document.meta
        self._excluded(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def done(self, **result: object) -> Done:
        """What the task leaves: the two files, the counts, and what else is given."""
        files = [self._shard.path.name, self._shard.excluded_path.name]
        return Done(files=files, result={**self.tally.counts(), **result})


@contextlib.contextmanager
def write_shard(shard: Shard, *, keep_dropped: bool) -> Iterator[ShardWriter]:
    """Opens a shard for writing; its files appear, whole, when the block is left without an error."""
    with (
        atomic_write(shard.path) as documents_file,
        atomic_write(shard.excluded_path) as excluded_file,
        _compressed(documents_file) as documents,
        _compressed(excluded_file) as excluded,
    ):
        yield ShardWriter(shard, documents.write, excluded.write, keep_dropped)


def read_lines(shard: Shard, *, on_read: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """The documents of a shard as lines."""
    with open_decompressed(shard.path, on_read=on_read) as stream:
        yield from stream


def read_shard(shard: Shard, *, on_read: Callable[[int], None] | None = None) -> Iterator[Document]:
    """The documents of a shard."""
    return map(from_json_line, read_lines(shard, on_read=on_read))


@contextlib.contextmanager
def _compressed(file: IO[bytes]) -> Iterator[IO[bytes]]:
    compressor = zstandard.ZstdCompressor(level=_ZSTANDARD_LEVEL, write_checksum=True)
    with compressor.stream_writer(file, closefd=False) as stream:
        yield stream
