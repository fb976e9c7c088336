"""JSON lines as Megatron-LM's scripts pass them on: all fields stay, in their order."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from groundup.core.errors import DataError
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.line_blocks import MalformedRecord
from groundup.corpus.records import RecordReader
from groundup.corpus.source_ranges import SourceRange
from groundup.corpus.sources import find_source_files, form_of

Row = dict[str, Any]


class Line(NamedTuple):
    """A line that is an object: ``file:line``, its fields, and its bytes without the end."""

    where: str
    row: Row
    raw: bytes


def read_rows_of(
    path: Path,
    bad_records: BadRecords,
    *,
    texts: tuple[str, ...] = (),
    on_read: Callable[[int], None] = lambda size: None,
) -> Iterator[Line]:
    """Yields each line that is an object.

    Args:
        path: A file of JSON lines, also .gz or .zst.
        bad_records: Takes the other lines.
        texts: Fields that must be there, and strings.
        on_read: Told the bytes taken from disk.

    Raises:
        DataError: The file is missing, damaged or of another kind; or as ``bad_records`` decides.
    """
    for file in find_source_files([path]):
        if form_of(file.path) != "lines":
            raise DataError(
                "is no file of JSON lines by its name",
                where=file.path,
                fix="Name it .json or .jsonl (or .gz, .zst).",
            )
        for line, fields, raw, problem, _ in RecordReader(
            SourceRange(file, file.size_bytes), "text", on_read=on_read
        ):
            where = f"{file.path}:{line}"
            try:
                if problem:
                    raise problem
                for name in texts:
                    _require_text(name, fields)
            except MalformedRecord as error:
                bad_records.add(where, error.reason, detail=error.detail, record=raw)
                continue
            bad_records.add_good()
            yield Line(where, fields, raw)


def read_again() -> BadRecords:
    """Returns what takes the bad records of a file that was read before: they were told of then."""
    return BadRecords(BadRecordPolicy(action="skip", max_bad=1.0))


def json_row(fields: Mapping[str, Any]) -> bytes:
    """Returns a line as the scripts write it: Python's own form of JSON, and other scripts unescaped."""
    return f"{json.dumps(fields, ensure_ascii=False)}\n".encode()


def _require_text(name: str, fields: Row) -> None:
    if name not in fields:
        raise MalformedRecord(
            "no key", f"no key {name!r}; the keys are: {', '.join(list(fields)[:8]) or 'none'}"
        )
    if not isinstance(fields[name], str):
        raise MalformedRecord("not a string", f"{name!r} is of type {type(fields[name]).__name__}")
