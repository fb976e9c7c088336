"""The files of one part of a build: tokens, lengths and document sources of each key, and bad records."""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.core.executor.tasks import Done
from groundup.core.files import temporary_path
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords, Offender
from groundup.corpus.document import text_bytes
from groundup.corpus.line_blocks import MalformedRecord
from groundup.corpus.source_ranges import Part, SourceRange
from groundup.corpus.sources import printable
from groundup.tokens.dataset.document_sources import DocumentSourcesWriter

_RECORD_OVERHEAD_BYTES = 200  # of arrays and lists, beside the text

COUNTS = ("documents", "tokens", "text_bytes", "empty_documents")


@dataclasses.dataclass(frozen=True, slots=True)
class PieceNames:
    """The names of the files of a part: pieces of the final files.

    Attributes:
        tokens: Of each key: ids of a ``.bin``.
        lengths: Of each key: int32 of each sequence.
        sources: Document sources of each key.
        quarantine: The bad records, where there are some and they are kept.
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


class Written(NamedTuple):
    """What a flush wrote, and what was read for it."""

    text_bytes: int
    tokens: int
    good: int
    bad: list[Offender]


class _Held:
    """The documents of one key that are not written yet."""

    def __init__(self) -> None:
        self.ids: list[npt.NDArray[Any]] = []
        self.lengths: list[int] = []
        self.lines: list[int] = []
        self.urls: list[bytes] = []
        self.sources: list[tuple[str, int]] = []
        """Each source, and the first of its documents among these."""


class PartWriter:
    """Writes the pieces of a part. They appear when the block is left without an error, then ``done`` is set.

    Args:
        part: The part.
        folder: Where its pieces go.
        keys: Fields that are tokenized.
        dtype: Of the ids.
        ends: What closes each document: the end-of-document id, or nothing.
        quarantine: Whether the bad records are kept.

    Attributes:
        lines: Lines of the source that was read last; of a range of plain lines, counted from its beginning.
        held_bytes: What is not written yet takes so much memory, about.
    """

    def __init__(
        self,
        part: Part,
        folder: Path,
        keys: Sequence[str],
        dtype: str,
        *,
        ends: Sequence[int],
        quarantine: bool,
    ) -> None:
        self.part = part
        self.done: Done | None = None
        self.lines = 0
        self.held_bytes = 0
        self._text_bytes = 0
        self._folder = folder
        self._names = PieceNames.of(part, keys)
        self._dtype = np.dtype(dtype)
        self._ends = np.array(ends, dtype=np.uint32)
        self._counts = [dict.fromkeys(COUNTS, 0) for _ in keys]
        self._source = ""
        self._held = [_Held() for _ in keys]
        self._fresh: list[Offender] = []
        self._reported = 0
        self._bad = BadRecords(
            BadRecordPolicy(action="quarantine" if quarantine else "skip", max_bad=1.0),
            quarantine_path=folder / self._names.quarantine,
            on_bad=self._fresh.append,
        )

    def __enter__(self) -> "PartWriter":
        (self._folder / self._names.quarantine).unlink(missing_ok=True)
        with contextlib.ExitStack() as stack:
            stack.callback(self._bad.close)
            self._tokens = [self._open(name, stack) for name in self._names.tokens]
            self._lengths = [self._open(name, stack) for name in self._names.lengths]
            self._sources_of_key = [
                stack.enter_context(DocumentSourcesWriter(self._folder / name))
                for name in self._names.sources
            ]
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, trace)  # closes, and removes what is temporary
            (self._folder / self._names.quarantine).unlink(missing_ok=True)
            return
        names = [*self._names.tokens, *self._names.lengths]
        with self._stack:
            self._require_unchanged()
            for name, file in zip(names, [*self._tokens, *self._lengths], strict=True):
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(self._folder / name)
        kept = [self._names.quarantine] if (self._folder / self._names.quarantine).is_file() else []
        result = {"counts": self._counts, "lines": self.lines, **self._bad.outcome()}
        self.done = Done(files=[*names, *self._names.sources, *kept], result=result)

    def begin(self, source: SourceRange) -> None:
        """What is added from here on is of this source."""
        self._source = printable(source.file.path)
        for held in self._held:
            held.sources.append((self._source, len(held.lengths)))

    def add(self, line: int, url: str, texts: Sequence[str], ids: Sequence[npt.NDArray[Any]]) -> None:
        """Adds a record.

        Args:
            line: Of its source; 0 for a whole file.
            url: Of it.
            texts: Of each key.
            ids: Of each text; one without ids is counted and left out.
        """
        self._bad.add_good()
        encoded = url.encode()
        self.held_bytes += _RECORD_OVERHEAD_BYTES
        for held, counts, text, ids_of_key in zip(self._held, self._counts, texts, ids, strict=True):
            size = text_bytes(text)
            counts["text_bytes"] += size
            self._text_bytes += size
            self.held_bytes += size
            if not len(ids_of_key):
                counts["empty_documents"] += 1
                continue
            held.ids.append(ids_of_key)
            if len(self._ends):
                held.ids.append(self._ends)
            held.lengths.append(len(ids_of_key) + len(self._ends))
            held.lines.append(line)
            held.urls.append(encoded)

    def add_bad(self, line: int, problem: MalformedRecord, raw: bytes) -> None:
        """Counts a record that is no document."""
        where = f"{self._source}:{line}" if line else self._source
        self._bad.add(where, problem.reason, detail=problem.detail, record=raw)

    def flush(self) -> Written:
        """Writes what is held."""
        num_tokens = 0
        for number, held in enumerate(self._held):
            if held.lengths:
                num_tokens += self._write(number, held)
            self._held[number] = _Held()
            self._held[number].sources.append((self._source, 0))
        bad = self._fresh.copy()
        self._fresh.clear()
        written = Written(self._text_bytes, num_tokens, self._bad.good - self._reported, bad)
        self._reported = self._bad.good
        self.held_bytes = self._text_bytes = 0
        return written

    def _write(self, number: int, held: _Held) -> int:
        tokens = np.concatenate(held.ids, dtype=self._dtype, casting="unsafe")
        lengths = np.array(held.lengths, dtype="<i4")
        self._tokens[number].write(tokens.data)
        self._lengths[number].write(lengths.data)
        self._counts[number]["documents"] += len(lengths)
        self._counts[number]["tokens"] += len(tokens)
        lines = np.array(held.lines, dtype=np.int64)
        ends = [*(first for _, first in held.sources[1:]), len(lines)]
        for (source, begin), end in zip(held.sources, ends, strict=True):
            urls = held.urls[begin:end]
            url_lengths = np.array(list(map(len, urls)), dtype=np.int64) if any(urls) else None
            self._sources_of_key[number].add(source, lines[begin:end], url_lengths, b"".join(urls))
        return len(tokens)

    def _require_unchanged(self) -> None:
        for source in self.part.ranges:
            status = source.file.path.stat()
            if (status.st_size, status.st_mtime_ns) != (source.file.size_bytes, source.file.mtime_ns):
                raise DataError(
                    "was changed while it was read", where=source.file.path, fix="Run the command again."
                )

    def _open(self, name: str, stack: contextlib.ExitStack) -> IO[bytes]:
        path = temporary_path(self._folder / name)
        file = path.open("wb", buffering=1 << 20)
        stack.callback(path.unlink, missing_ok=True)
        stack.callback(file.close)
        return file
