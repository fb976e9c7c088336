"""Sources cut into blocks of about half a megabyte, not yet parsed: for those who parse them elsewhere.

Reading blocks costs next to nothing a document, so one process can feed many that parse and tokenize.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Literal

from groundup.core.compressed import DamagedFile, open_decompressed
from groundup.corpus.bad_records import DAMAGED_FILE
from groundup.corpus.parquet import DamagedParquet, Rows, read_rows
from groundup.corpus.read_documents import BYTE_ORDER_MARK, MAX_RECORD_BYTES, decompressed
from groundup.corpus.recorded import CorpusManifests
from groundup.corpus.sources import SourceFile, form_of

BLOCK_BYTES = 1 << 19


@dataclasses.dataclass(frozen=True, slots=True)
class SourceRange:
    """A source file, or a part of one.

    Attributes:
        file: The file.
        begin: First byte of a JSONL file, or first row group of a Parquet file.
        end: One past the last; 0 for the end of the file. A line belongs to the range in which it begins.
        size_bytes: On disk; of a run of row groups, about.
        lines_before: Rows of a Parquet file before the range.
    """

    file: SourceFile
    size_bytes: int
    begin: int = 0
    end: int = 0
    lines_before: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Some documents of one file.

    Attributes:
        number: Of the range it comes from, in the list that was read.
        content: Whole JSON lines, the bytes of a text file, or rows of a Parquet file; None for a bad
            record that can be told without parsing.
        form: Which of these.
        reason: Why the record is bad.
        detail: What is particular to it.
    """

    number: int
    content: bytes | Rows | None
    form: Literal["lines", "text", "rows"]
    reason: str = ""
    detail: str = ""


def read_blocks(
    ranges: Sequence[SourceRange],
    columns: Sequence[str],
    *,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[Block]:
    """Reads the ranges in order, holding about one block, or one record where that is larger.

    Args:
        ranges: What to read.
        columns: Columns of Parquet files that are wanted; ``url`` comes with them.
        on_read: Told the bytes taken from disk, for progress.

    Raises:
        DataError: A file cannot be read, or has not these columns.
    """
    manifests = CorpusManifests()
    for number, part in enumerate(ranges):
        form = form_of(part.file.path)
        if form == "rows":
            yield from _row_blocks(part, number, columns, on_read)
            continue
        counted = _at_most(part.size_bytes, on_read) if on_read else None
        recorded = manifests.hold(part.file)
        with decompressed(part.file.path, on_read=counted, recorded=recorded) as stream:
            if form == "lines":
                yield from _line_blocks(stream, part, number)
            else:
                yield _text_block(stream, number)


def lines_before(part: SourceRange) -> int:
    """Lines of a JSONL file that begin before a range of it; reads the file up to there."""
    if form_of(part.file.path) != "lines":
        return part.lines_before
    if not part.begin:
        return 0
    count = 1
    left = part.begin - 1
    with open_decompressed(part.file.path) as stream:
        while left and (chunk := stream.read(min(left, BLOCK_BYTES))):
            count += chunk.count(b"\n")
            left -= len(chunk)
    return count


def count_lines(content: bytes) -> int:
    """Lines in a block, the last of which may lack its newline."""
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


def _line_blocks(stream: IO[bytes], part: SourceRange, number: int) -> Iterator[Block]:
    begin = part.begin
    if begin:
        stream.seek(begin - 1)
        begin += _skip_line(stream) - 1
    for content, size, problem in _whole_lines(stream):
        if part.end and begin >= part.end:
            return
        if problem:
            yield Block(number, None, "lines", *problem)
        else:
            if part.end and begin + size > part.end:
                cut = content.find(b"\n", part.end - 1 - begin) + 1
                content = content[:cut] if cut else content
            yield Block(number, content if begin else content.removeprefix(BYTE_ORDER_MARK), "lines")
        begin += size


def _whole_lines(stream: IO[bytes]) -> Iterator[tuple[bytes, int, tuple[str, str] | None]]:
    """The stream in blocks that end where a line ends: content, size, and what is wrong with a record."""
    pieces: list[bytes] = []
    held = 0
    while True:
        try:
            chunk = stream.read1(BLOCK_BYTES)  # type: ignore[attr-defined]
            cut = chunk.rfind(b"\n") + 1
            if not cut and chunk and held + len(chunk) > MAX_RECORD_BYTES:
                size = held + len(chunk) + _skip_line(stream)
                pieces, held = [], 0
                yield b"", size, ("too long", f"over {MAX_RECORD_BYTES:,} bytes")
                continue
        except DamagedFile as error:
            yield b"", 0, (DAMAGED_FILE, error.what)
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
    while piece := stream.readline(BLOCK_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _text_block(stream: IO[bytes], number: int) -> Block:
    try:
        content = stream.read(MAX_RECORD_BYTES + 1)
    except DamagedFile as error:
        return Block(number, None, "text", DAMAGED_FILE, error.what)
    return Block(number, content, "text")


def _row_blocks(
    part: SourceRange, number: int, columns: Sequence[str], on_read: Callable[[int], None] | None
) -> Iterator[Block]:
    try:
        for rows, share in read_rows(part.file.path, columns, begin=part.begin, end=part.end):
            yield Block(number, rows, "rows")
            if on_read:
                on_read(round(share * part.size_bytes))
    except DamagedParquet as error:
        yield Block(number, None, "rows", DAMAGED_FILE, error.what)


def _at_most(limit: int, on_read: Callable[[int], None]) -> Callable[[int], None]:
    """Counts no more than ``limit`` bytes: a range's last buffer reaches beyond it."""
    left = limit

    def count(size: int) -> None:
        nonlocal left
        on_read(min(size, left))
        left -= min(size, left)

    return count
