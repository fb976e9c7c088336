"""The input cut into parts for many workers: from the files alone, never from who will do them."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from groundup.core.compressed import DamagedFile
from groundup.core.manifest import fingerprint
from groundup.corpus.parquet import row_groups
from groundup.corpus.sources import COMPRESSED_ENDINGS, SourceFile, form_of

_MOST_FILES = 10_000
_MOST_COMPRESSED_RANGES = 8
"""Of a compressed file: who reads one of them decompresses all that lies before it."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceRange:
    """A source file, or a part of one.

    Attributes:
        file: The file.
        begin: First byte of a JSONL or WARC file (as it lies on disk, so of a compressed file a compressed
            byte), or first row group of a Parquet file, or record batch of an Arrow file.
        end: One past the last; 0 for the end of the file. A line belongs to the range in which it begins.
        size_bytes: On disk; of a run of row groups, about.
        lines_before: Rows of a Parquet file before the range; lines of a plain JSONL file, where they were
            counted.
    """

    file: SourceFile
    size_bytes: int
    begin: int = 0
    end: int = 0
    lines_before: int = 0

    @property
    def is_range_of_lines(self) -> bool:
        """Whether it begins within a plain file of lines, so that the lines before it must be counted."""
        path = self.file.path
        return self.begin > 0 and form_of(path) == "lines" and path.suffix.lower() not in COMPRESSED_ENDINGS


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A run of the input.

    Attributes:
        number: In the order of the input, from 0.
        ranges: Whole files, or one range of a file.
    """

    number: int
    ranges: tuple[SourceRange, ...]

    @property
    def name(self) -> str:
        """What its files begin with."""
        return f"part-{self.number:06d}"

    @property
    def size_bytes(self) -> int:
        """On disk."""
        return sum(part.size_bytes for part in self.ranges)

    @property
    def is_range_of_lines(self) -> bool:
        """Whether it begins within a plain JSONL file, so that its lines are counted from there."""
        return self.ranges[0].is_range_of_lines

    def fingerprint(self, settings: str) -> str:
        """Of the settings and of this part's input."""
        return fingerprint([settings, _described(self.ranges)])


def cut_into_parts(files: Sequence[SourceFile], part_bytes: int) -> list[Part]:
    """Cuts the input: runs of small files, ranges of large JSONL files, row groups, whole other files.

    Args:
        files: In the order of the input.
        part_bytes: About the size of a part.

    Raises:
        DataError: A file is of a kind that is not read.
    """
    parts: list[Part] = []
    run: list[SourceRange] = []
    size = 0

    def close() -> None:
        nonlocal run, size
        if run:
            parts.append(Part(len(parts), tuple(run)))
        run, size = [], 0

    for file in files:
        ranges = list(_ranges_of(file, part_bytes))
        if len(ranges) > 1:
            close()
            parts += [Part(len(parts) + number, (part,)) for number, part in enumerate(ranges)]
            continue
        if size + file.size_bytes > part_bytes or len(run) >= _MOST_FILES:
            close()
        run += ranges
        size += file.size_bytes
    close()
    return parts


def _ranges_of(file: SourceFile, part_bytes: int) -> Iterator[SourceRange]:
    form = form_of(file.path)
    if file.size_bytes > part_bytes:
        if form == "lines":
            is_compressed = file.path.suffix.lower() in COMPRESSED_ENDINGS
            yield from _line_ranges(file, part_bytes, is_compressed=is_compressed)
            return
        if form == "warc":
            yield from _line_ranges(file, part_bytes, is_compressed=True)
            return
        if form == "rows":
            yield from _row_ranges(file, part_bytes)
            return
    yield SourceRange(file, file.size_bytes)


def _line_ranges(file: SourceFile, part_bytes: int, *, is_compressed: bool) -> Iterator[SourceRange]:
    number = -(-file.size_bytes // part_bytes)
    if is_compressed:
        number = min(number, _MOST_COMPRESSED_RANGES)
    bounds = [file.size_bytes * part // number for part in range(number + 1)]
    for begin, end in itertools.pairwise(bounds):
        is_open = is_compressed and end == file.size_bytes
        yield SourceRange(file, end - begin, begin, 0 if is_open else end)


def _row_ranges(file: SourceFile, part_bytes: int) -> Iterator[SourceRange]:
    try:
        groups = row_groups(file.path)
    except DamagedFile:  # counted as a bad record when it is read
        groups = []
    if len(groups) < 2:
        yield SourceRange(file, file.size_bytes)
        return
    begin = size = rows = rows_before = 0
    for number, group in enumerate(groups):
        if number > begin and size + group.size_bytes > part_bytes:
            yield SourceRange(file, size, begin, number, rows_before)
            begin, size, rows_before = number, 0, rows
        size += group.size_bytes
        rows += group.num_rows
    yield SourceRange(file, size, begin, len(groups), rows_before)


@dataclasses.dataclass(frozen=True, slots=True)
class ShardSources:
    """What a shard is read from: files of the Python library, then files and ranges of files."""

    library: tuple[SourceFile, ...]
    ranges: tuple[SourceRange, ...]

    @property
    def size_bytes(self) -> int:
        """On disk."""
        files = sum(file.size_bytes for file in self.library)
        return files + sum(source.size_bytes for source in self.ranges)

    def fingerprint(self) -> str:
        """Of path, size, time of change and range of each file."""
        library = [SourceRange(file, file.size_bytes) for file in self.library]
        return fingerprint([_described(library), _described(self.ranges)])


def cut_into_shards(
    library: Sequence[SourceFile], files: Sequence[SourceFile], num_shards: int
) -> list[ShardSources]:
    """Cuts the input into shards of about the same size, in its order; some may be empty.

    Args:
        library: Files of the Python library; they come first.
        files: All others.
        num_shards: How many shards.
    """
    total = max(1, sum(file.size_bytes for file in (*library, *files)))
    shards: list[tuple[list[SourceFile], list[SourceRange]]] = [([], []) for _ in range(num_shards)]
    before = 0

    def shard_of_next(size: int) -> tuple[list[SourceFile], list[SourceRange]]:
        nonlocal before
        number = (before + size // 2) * num_shards // total
        before += size
        return shards[min(number, num_shards - 1)]

    for file in library:
        shard_of_next(file.size_bytes)[0].append(file)
    for part in cut_into_parts(files, -(-total // num_shards)):
        shard_of_next(part.size_bytes)[1].extend(part.ranges)
    return [ShardSources(tuple(library), tuple(ranges)) for library, ranges in shards]


def _described(ranges: Sequence[SourceRange]) -> list[list[Any]]:
    # As ASCII, so that file names that are not Unicode can be hashed.
    return [
        [ascii(str(part.file.path)), part.file.size_bytes, part.file.mtime_ns, part.begin, part.end]
        for part in ranges
    ]
