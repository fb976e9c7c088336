"""The files of one part of a build: tokens, lengths and document sources of each key, and bad records."""

import collections
import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from groundup.core.errors import DataError
from groundup.core.executor.tasks import Done
from groundup.corpus.bad_records import DAMAGED_FILE, SHOWN_OFFENDERS, quarantine_line
from groundup.corpus.sources import printable
from groundup.tokens.dataset.document_sources import DocumentSourcesWriter
from groundup.tokens.tokenize.parts import Part
from groundup.tokens.tokenize.tokenize_batch import Batch, TokenizedBatch

COUNTS = ("documents", "tokens", "text_bytes", "empty_documents")


@dataclasses.dataclass(frozen=True, slots=True)
class PieceNames:
    """The names of the files of a part: pieces of the final files.

    Attributes:
        tokens: Of each key: ids of a ``.bin``.
        lengths: Of each key: int32 of each sequence.
        sources: Document sources of each key.
        quarantine: The bad records.
    """

    tokens: tuple[str, ...]
    lengths: tuple[str, ...]
    sources: tuple[str, ...]
    quarantine: str

    @classmethod
    def of(cls, part: Part, keys: Sequence[str]) -> "PieceNames":
        """The names for a part."""

        def names(ending: str) -> tuple[str, ...]:
            return tuple(f"{part.name}.{number}.{ending}" for number in range(len(keys)))

        return cls(names("bin"), names("lengths"), names("sources.npz"), f"{part.name}.quarantine")


class PartWriter:
    """Writes the pieces of a part. They appear when the block is left without an error, then ``done`` is set.

    Args:
        part: The part.
        folder: Where its pieces go.
        keys: Fields that are tokenized.
        quarantine: Whether the bad records are kept.
    """

    def __init__(self, part: Part, folder: Path, keys: Sequence[str], *, quarantine: bool) -> None:
        self.part = part
        self.done: Done | None = None
        self._folder = folder
        self._names = PieceNames.of(part, keys)
        self._keeps_bad = quarantine
        self._counts = [dict.fromkeys(COUNTS, 0) for _ in keys]
        self._sources = [printable(source.file.path) for source in part.ranges]
        self._range = 0
        self._lines = part.ranges[0].lines_before
        self._good = 0
        self._by_reason: collections.Counter[str] = collections.Counter()
        self._offenders: list[tuple[str, str, str]] = []

    def __enter__(self) -> "PartWriter":
        with contextlib.ExitStack() as stack:
            self._tokens = [self._open(name, stack) for name in self._names.tokens]
            self._lengths = [self._open(name, stack) for name in self._names.lengths]
            self._sources_of_key = [
                stack.enter_context(DocumentSourcesWriter(self._folder / name))
                for name in self._names.sources
            ]
            self._quarantine = self._open(self._names.quarantine, stack) if self._keeps_bad else None
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, trace)  # closes, and removes what is temporary
            return
        names = [*self._names.tokens, *self._names.lengths]
        files = [*self._tokens, *self._lengths]
        if self._quarantine:
            names.append(self._names.quarantine)
            files.append(self._quarantine)
        with self._stack:
            self._require_unchanged()
            for name, file in zip(names, files, strict=True):
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(self._folder / name)
        self.done = Done(files=[*names, *self._names.sources], result=self._result())

    def add(self, batch: Batch, result: TokenizedBatch) -> list[tuple[str, str, str]]:
        """Appends a batch; returns where, reason and detail of its bad records.

        The lines of a part that is a range of lines are counted from its beginning.
        """
        first_lines = self._first_lines(batch, result)
        for number, key in enumerate(result.keys):
            self._tokens[number].write(key.tokens.data)
            self._lengths[number].write(key.lengths.astype("<i4", copy=False).data)
            self._add_sources(number, batch, result, first_lines)
            counts = self._counts[number]
            counts["documents"] += len(key.lengths)
            counts["tokens"] += len(key.tokens)
            counts["text_bytes"] += key.text_bytes
            counts["empty_documents"] += key.num_empty
        self._good += result.num_good
        offenders = []
        for bad in result.bad:
            block = batch.blocks[bad.block]
            where = self._sources[block.number]
            if bad.line:
                where += f":{first_lines[bad.block] + bad.line}"
            offenders.append((where, bad.reason, bad.detail))
            self._by_reason[bad.reason] += 1
            if self._quarantine:
                self._quarantine.write(quarantine_line(where, bad.reason, bad.detail, bad.record))
        room = SHOWN_OFFENDERS - len(self._offenders)
        self._offenders += [
            offender
            for number, offender in enumerate(offenders)
            if number < room or offender[1] == DAMAGED_FILE
        ]
        return offenders

    def _first_lines(self, batch: Batch, result: TokenizedBatch) -> list[int]:
        """Lines of the same file before each block."""
        before = []
        for block, lines in zip(batch.blocks, result.lines, strict=True):
            if block.number != self._range:
                self._range = block.number
                self._lines = self.part.ranges[block.number].lines_before
            before.append(self._lines)
            self._lines += lines
        return before

    def _add_sources(
        self, number: int, batch: Batch, result: TokenizedBatch, first_lines: Sequence[int]
    ) -> None:
        key = result.keys[number]
        begin = url_begin = 0
        for block, count, first in zip(batch.blocks, key.documents_in_blocks, first_lines, strict=True):
            lines = key.lines[begin : begin + count]
            url_lengths = None
            urls = b""
            if key.url_lengths is not None:
                url_lengths = key.url_lengths[begin : begin + count]
                url_end = url_begin + int(url_lengths.sum())
                urls = key.urls[url_begin:url_end]
                url_begin = url_end
            # 0 stands for a whole file, which has no lines before it.
            self._sources_of_key[number].add(
                self._sources[block.number], np.where(lines, lines + first, 0), url_lengths, urls
            )
            begin += count

    def _require_unchanged(self) -> None:
        for source in self.part.ranges:
            status = source.file.path.stat()
            if (status.st_size, status.st_mtime_ns) != (source.file.size_bytes, source.file.mtime_ns):
                raise DataError(
                    "was changed while it was read", where=source.file.path, fix="Run the command again."
                )

    def _result(self) -> dict[str, Any]:
        return {
            "counts": self._counts,
            "lines": self._lines,
            "good": self._good,
            "bad": dict(self._by_reason),
            "offenders": self._offenders,
        }

    def _open(self, name: str, stack: contextlib.ExitStack) -> IO[bytes]:
        path = self._folder / f".{name}.{os.getpid()}.tmp"
        file = path.open("wb", buffering=1 << 20)
        stack.callback(path.unlink, missing_ok=True)
        stack.callback(file.close)
        return file
