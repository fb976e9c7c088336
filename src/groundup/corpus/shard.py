"""Shards: files of documents that a task reads and writes, with what was dropped and the counts."""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import orjson
import zstandard

from groundup.core.compressed import open_decompressed
from groundup.core.executor.tasks import Done
from groundup.core.files import atomic_write
from groundup.corpus.corpus_manifest import shard_name
from groundup.corpus.document import Document, from_json_line, text_bytes, to_json_line
from groundup.corpus.report import Tally

_KEPT_LEVEL, _PASSING_LEVEL = 3, 1  # of Zstandard
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
        is_kept: Whether it outlives the run; others are compressed quickly.
        passed_to: The stage that takes the documents instead of a file; what is dropped is written.
    """

    folder: Path
    number: int
    total: int
    fingerprint: str
    is_kept: bool = True
    passed_to: "Passage | None" = None

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


class Processor(Protocol):
    """A stage that looks at one document at a time."""

    def process(self, document: Document, out: "ShardWriter") -> None:
        """Keeps, edits or drops a document."""


@dataclasses.dataclass(frozen=True, slots=True)
class Passage:
    """Where the documents of a shard go that is not written.

    Attributes:
        stage: Takes them.
        shard: What that stage makes of them.
        keep_dropped: Whether documents that it drops are kept whole.
    """

    stage: Processor
    shard: Shard
    keep_dropped: bool


class ShardWriter(abc.ABC):
    """Takes the documents of a shard, and what is dropped; counts both. See ``write_shard``."""

    def __init__(self, shard: Shard, excluded: IO[bytes], keep_dropped: bool) -> None:
        self.tally = Tally()
        self._shard = shard
        self._excluded = excluded
        self._keep_dropped = keep_dropped

    @abc.abstractmethod
    def keep(self, document: Document) -> None:
        """Takes a document."""

    @abc.abstractmethod
    def keep_line(self, line: bytes, size_bytes: int) -> None:
        """Takes a document that is a line already.

        Args:
            line: As ``to_json_line`` gives it.
            size_bytes: Of its text.
        """

    def done(self, **result: object) -> Done:
        """What the task leaves: the files, the counts, and what else is given."""
        left = self._left()
        return Done(files=left.files, result={**self.tally.counts(), **result, **left.result})

    @abc.abstractmethod
    def _left(self) -> Done:
        """The files, and what is to be said besides the counts."""

    def drop(self, document: Document, rule: str, reason: str, detail: str = "") -> None:
        """Leaves a document out."""
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
        if self._keep_dropped:
            line["meta"] = document.meta
        self._excluded.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


class _FileWriter(ShardWriter):
    """Writes the documents."""

    def __init__(self, shard: Shard, documents: IO[bytes], excluded: IO[bytes], keep_dropped: bool) -> None:
        super().__init__(shard, excluded, keep_dropped)
        self._documents = documents

    def keep(self, document: Document) -> None:
        self.keep_line(to_json_line(document), text_bytes(document.text))

    def keep_line(self, line: bytes, size_bytes: int) -> None:
        self.tally.keep(size_bytes)
        self._documents.write(line)

    def _left(self) -> Done:
        return Done(files=[self._shard.path.name, self._shard.excluded_path.name], result={})


class _PassingWriter(ShardWriter):
    """Hands the documents to the next stage, which has a writer of its own."""

    def __init__(
        self, shard: Shard, passage: Passage, out: ShardWriter, excluded: IO[bytes], keep_dropped: bool
    ) -> None:
        super().__init__(shard, excluded, keep_dropped)
        self._passage = passage
        self._out = out

    def keep(self, document: Document) -> None:
        self.tally.keep(text_bytes(document.text))
        self._passage.stage.process(document, self._out)

    def keep_line(self, line: bytes, size_bytes: int) -> None:
        self.tally.keep(size_bytes)
        self._passage.stage.process(from_json_line(line), self._out)

    def _left(self) -> Done:
        then = self._out.done()
        folder = Path("..") / self._passage.shard.folder.name  # the folders of stages lie side by side
        files = [self._shard.excluded_path.name, *(str(folder / name) for name in then.files)]
        passed = [then.result, *then.result.pop("passed", ())]
        return Done(files=files, result={"passed": passed})  # of each stage behind this one


@contextlib.contextmanager
def write_shard(shard: Shard, *, keep_dropped: bool) -> Iterator[ShardWriter]:
    """Opens a shard for writing; its files appear, whole, when the block is left without an error."""
    with atomic_write(shard.excluded_path) as excluded_file, _compressed(excluded_file) as excluded:
        if passage := shard.passed_to:
            with write_shard(passage.shard, keep_dropped=passage.keep_dropped) as out:
                yield _PassingWriter(shard, passage, out, excluded, keep_dropped)
            return
        level = _KEPT_LEVEL if shard.is_kept else _PASSING_LEVEL
        with atomic_write(shard.path) as file, _compressed(file, level) as documents:
            yield _FileWriter(shard, documents, excluded, keep_dropped)


def read_lines(shard: Shard, *, on_read: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """The documents of a shard as lines."""
    with open_decompressed(shard.path, on_read=on_read) as stream:
        yield from stream


def read_shard(shard: Shard, *, on_read: Callable[[int], None] | None = None) -> Iterator[Document]:
    """The documents of a shard."""
    return map(from_json_line, read_lines(shard, on_read=on_read))


@contextlib.contextmanager
def _compressed(file: IO[bytes], level: int = _KEPT_LEVEL) -> Iterator[IO[bytes]]:
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    with compressor.stream_writer(file, closefd=False) as stream:
        yield stream
