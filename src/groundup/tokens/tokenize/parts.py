"""The input of a build cut into parts: from the files alone, never from who will do them."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from groundup.core.manifest import fingerprint
from groundup.corpus.blocks import SourceRange
from groundup.corpus.parquet import DamagedParquet, row_groups
from groundup.corpus.sources import COMPRESSED_ENDINGS, SourceFile, form_of

PART_BYTES = 1 << 26
"""About how much of the input, on disk, is one part."""

_MOST_FILES = 10_000


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
        """Whether it begins within a JSONL file, so that its lines are counted from there."""
        return bool(self.ranges[0].begin) and form_of(self.ranges[0].file.path) == "lines"

    def fingerprint(self, settings: str) -> str:
        """Of the settings and of this part's input."""
        described = [
            [ascii(str(part.file.path)), part.file.size_bytes, part.file.mtime_ns, part.begin, part.end]
            for part in self.ranges
        ]
        return fingerprint([settings, described])


def cut_into_parts(files: Sequence[SourceFile], part_bytes: int = PART_BYTES) -> list[Part]:
    """Cuts the input: runs of small files, byte ranges of large JSONL files, row groups, whole other files.

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
        if form == "lines" and file.path.suffix.lower() not in COMPRESSED_ENDINGS:
            number = -(-file.size_bytes // part_bytes)
            bounds = [file.size_bytes * part // number for part in range(number + 1)]
            for begin, end in itertools.pairwise(bounds):
                yield SourceRange(file, end - begin, begin, end)
            return
        if form == "rows":
            yield from _row_ranges(file, part_bytes)
            return
    yield SourceRange(file, file.size_bytes)


def _row_ranges(file: SourceFile, part_bytes: int) -> Iterator[SourceRange]:
    try:
        groups = row_groups(file.path)
    except DamagedParquet:  # counted as a bad record when it is read
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
