"""Tokenizing a part of the input: the work of a task, in whatever process."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.core.executor.tasks import Done, Report
from groundup.corpus.bad_records import Offender
from groundup.corpus.extraction.page_reader import PageExtractor
from groundup.corpus.line_blocks import MalformedRecord
from groundup.corpus.recorded import CorpusManifests
from groundup.corpus.records import Record, RecordReader, text_under, url_of
from groundup.corpus.source_ranges import Part
from groundup.tokens.tokenize.part_writer import PartWriter
from groundup.tokens.tokenizer.base import Tokenizer

_BATCH_BYTES = 1 << 19


@dataclasses.dataclass(frozen=True, slots=True)
class PartReport:
    """What happened since the last report of the same task.

    Attributes:
        part: The number of the part.
        read_bytes: Taken from disk.
        text_bytes: Tokenized, of all keys.
        tokens: Written, of all keys.
        good: Records read well.
        bad: Where, reason and detail of those that were not.
        reading: Seconds.
        tokenizing: Seconds.
        writing: Seconds.
    """

    part: int
    read_bytes: int
    text_bytes: int
    tokens: int
    good: int
    bad: list[Offender]
    reading: float
    tokenizing: float
    writing: float


@dataclasses.dataclass(frozen=True, slots=True)
class TokenizePart:
    """Reads, tokenizes and writes a part.

    Attributes:
        tokenizer: Text -> ids.
        keys: Fields of a record; the text of a text file counts as the only key's.
        append_end_of_document: Whether each document that has tokens is closed.
        dtype: Of the ids.
        folder: Where the pieces go.
        quarantine: Whether bad records are kept.
        begin_ids: Of each document.
    """

    tokenizer: Tokenizer
    keys: tuple[str, ...]
    append_end_of_document: bool
    dtype: str
    folder: Path
    quarantine: bool
    begin_ids: tuple[int, ...] = ()

    def __call__(self, part: Part, report: Report) -> Done:
        """Does a part."""
        ends = [self.tokenizer.end_of_document_id] if self.append_end_of_document else []
        manifests = CorpusManifests()
        clock = _Clock()
        with (
            PageExtractor() as pages,
            PartWriter(
                part, self.folder, self.keys, self.dtype, ends=ends, quarantine=self.quarantine
            ) as writer,
        ):
            for source in part.ranges:
                writer.begin(source)
                reader = RecordReader(
                    source,
                    self.keys[0],
                    self.keys,
                    on_read=clock.count_bytes,
                    recorded=manifests.hold(source.file),
                    pages=pages,
                )
                for record in reader:
                    self._add(record, writer, clock)
                    if writer.held_bytes >= _BATCH_BYTES:
                        report(_flush(part, writer, clock))
                writer.lines = reader.lines
            report(_flush(part, writer, clock))
        assert writer.done, "it was left without an error"
        return writer.done

    def _add(self, record: Record, writer: PartWriter, clock: "_Clock") -> None:
        try:
            if record.problem:
                raise record.problem
            texts = [text_under(key, record.fields) for key in self.keys]
            began = time.perf_counter()
            ids = [self._encode(text) for text in texts]
            clock.tokenizing += time.perf_counter() - began
        except MalformedRecord as error:
            raw = record.raw or next((cell for cell in record.fields.values() if type(cell) is bytes), b"")
            writer.add_bad(record.line, error, raw)
            return
        writer.add(record.line, url_of(record.fields), texts, ids)

    def _encode(self, text: str) -> npt.NDArray[Any]:
        try:
            ids = self.tokenizer.encode_array(text)
            return np.concatenate([np.array(self.begin_ids, ids.dtype), ids]) if self.begin_ids else ids
        except BaseException as error:
            if not _is_of_the_text(error):
                raise
            raise MalformedRecord("tokenizer failed", f"{type(error).__name__}: {error}") from None


class _Clock:
    """What a task read, and where its time went, since it last reported."""

    def __init__(self) -> None:
        self._bytes = 0
        self._began = time.perf_counter()
        self.tokenizing = 0.0

    def count_bytes(self, size: int) -> None:
        self._bytes += size

    def take(self) -> tuple[int, float, float]:
        """Bytes read, and seconds of everything and of tokenizing; begins anew."""
        now = time.perf_counter()
        taken = self._bytes, now - self._began, self.tokenizing
        self._bytes, self._began, self.tokenizing = 0, now, 0.0
        return taken


def _flush(part: Part, writer: PartWriter, clock: _Clock) -> PartReport:
    began = time.perf_counter()
    written = writer.flush()
    writing = time.perf_counter() - began
    read_bytes, seconds, tokenizing = clock.take()
    return PartReport(
        part=part.number,
        read_bytes=read_bytes,
        text_bytes=written.text_bytes,
        tokens=written.tokens,
        good=written.good,
        bad=written.bad,
        reading=seconds - tokenizing - writing,
        tokenizing=tokenizing,
        writing=writing,
    )


def _is_of_the_text(error: BaseException) -> bool:
    """Whether the tokenizer failed on this text, and may do well with the next."""
    if type(error).__name__ == "PanicException":  # of a library in Rust; no child of Exception
        return True
    return isinstance(error, Exception) and not isinstance(error, MemoryError)
