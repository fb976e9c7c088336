"""Cuts files of lines, or ranges of them, plain or compressed, into blocks of whole lines."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from groundup.core.compressed import DamagedFile, RecordedFile, open_decompressed
from groundup.core.errors import DataError
from groundup.corpus.bad_records import DAMAGED_FILE
from groundup.corpus.source_ranges import SourceRange
from groundup.corpus.sources import COMPRESSED_ENDINGS

MAX_RECORD_BYTES = 1 << 29
"""A longer line or text file counts as a bad record: it would be held in memory many times over."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 19

OnRead = Callable[[int], None]
"""Told a number of bytes taken from disk."""


class MalformedRecord(Exception):  # not an error of the run
    """A line, row or file that is no document, and why.

    Attributes:
        reason: A short phrase from a small set.
        detail: What is particular to this one.
        line: Of a text file, where the line is known.
    """

    def __init__(self, reason: str, detail: str = "", line: int = 0) -> None:
        super().__init__(reason, detail, line)
        self.reason = reason
        self.detail = detail
        self.line = line


class LineBlocks:
    """Cuts a range of a file of lines into blocks of whole lines.

    A range of a plain file is sought; of a compressed one, all before it is decompressed and passed over,
    the range being one of compressed bytes: a block belongs to that range in which the reading of it begins.
    """

    def __init__(self, source: SourceRange, on_read: OnRead) -> None:
        self.skipped_lines = 0
        self._source = source
        self._on_read = on_read
        self._compressed = source.file.path.suffix.lower() in COMPRESSED_ENDINGS
        self._at = 0  # bytes of a compressed file taken from disk
        self._left = source.size_bytes

    def advance(self, size: int) -> None:
        """Counts bytes from disk, and reports those of the range: its last buffer reaches beyond it."""
        self._at += size
        if not self._compressed or self._at > self._source.begin:
            reported = min(size, self._left)
            self._left -= reported
            self._on_read(reported)

    def of(self, stream: IO[bytes]) -> Iterator[tuple[bytes | None, MalformedRecord | None]]:
        """Blocks of the range (None: one of a range before), and what is wrong with a record instead."""
        begin, end = self._source.begin, self._source.end
        at = 0
        if begin and not self._compressed:
            stream.seek(begin - 1)
            at = begin + _skip_line(stream) - 1
        began = 0
        for content, size, problem in _whole_lines(stream):
            if self._compressed:
                is_before, is_behind = began < begin, bool(end) and began >= end
                began = self._at
            else:
                is_before, is_behind = False, bool(end) and at >= end
            if is_behind:
                return
            if is_before:
                if problem and problem.reason == DAMAGED_FILE:
                    return  # told by the range in which it is
                self.skipped_lines = lines_in(content) + bool(problem)
                yield None, None
            elif problem:
                yield None, problem
            else:
                if end and not self._compressed and at + size > end:
                    cut = content.find(b"\n", end - 1 - at) + 1
                    content = content[:cut] if cut else content
                yield (content if at else content.removeprefix(BYTE_ORDER_MARK)), None
            at += size


def _whole_lines(stream: IO[bytes]) -> Iterator[tuple[bytes, int, MalformedRecord | None]]:
    """The stream in blocks that end where a line ends: content, size, and what is wrong with a record."""
    pieces: list[bytes] = []
    held = 0
    while True:
        try:
            chunk = stream.read1(_BLOCK_BYTES)  # type: ignore[attr-defined]
            cut = chunk.rfind(b"\n") + 1
            if not cut and chunk and held + len(chunk) > MAX_RECORD_BYTES:
                size = held + len(chunk) + _skip_line(stream)
                pieces, held = [], 0
                yield b"", size, MalformedRecord("too long", f"over {MAX_RECORD_BYTES:,} bytes")
                continue
        except DamagedFile as error:
            yield b"", 0, MalformedRecord(DAMAGED_FILE, error.what)
            return
        if cut or not chunk:
            content = b"".join([*pieces, chunk[:cut]])
            if content:
                yield content, len(content), None
            if not chunk:
                return
            pieces, held = [chunk[cut:]], len(chunk) - cut
        else:
            pieces.append(chunk)
            held += len(chunk)


def _skip_line(stream: IO[bytes]) -> int:
    """Reads up to the end of a line; returns how many bytes."""
    skipped = 0
    while piece := stream.readline(_BLOCK_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def lines_in(content: bytes) -> int:
    """Lines in a block, the last of which may lack its newline."""
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


def count_lines(source: SourceRange, on_read: OnRead) -> int:
    """Newlines of a plain file from before a range to before its last byte: what its lines add to the next's.

    ``1 +`` the sum of the ranges before is ``lines_before`` of a range.
    """
    begin = max(source.begin - 1, 0)
    left = source.begin + source.size_bytes - 1 - begin
    lines = 0
    with decompressed(source.file.path) as stream:
        stream.seek(begin)
        while left and (chunk := stream.read(min(left, _BLOCK_BYTES))):
            lines += chunk.count(b"\n")
            left -= len(chunk)
            on_read(len(chunk))
    return lines


@contextlib.contextmanager
def decompressed(
    path: Path, *, on_read: OnRead | None = None, recorded: RecordedFile | None = None
) -> Iterator[IO[bytes]]:
    """Like ``open_decompressed``, of a source: one that cannot be read is the user's to mend.

    Raises:
        DataError: The file cannot be opened or read.
    """
    try:
        with open_decompressed(path, on_read=on_read, recorded=recorded) as stream:
            yield stream
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        raise DataError(
            f"cannot read the file ({error.strerror})",
            where=path,
            fix="Make it readable or leave it out.",
        ) from None
