"""Reading Parquet files by columns and in batches (extra ``[parquet]``: pyarrow)."""

import base64
import dataclasses
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from groundup.core.compressed import DamagedFile
from groundup.core.errors import DataError, MachineError

_BATCH_BYTES = 1 << 19
_MOST_ROWS = 4096
_BUFFER_BYTES = 1 << 20


class DamagedParquet(DamagedFile):
    """A file that is no Parquet file, or that ends or breaks before its last row."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Some rows.

    Attributes:
        columns: For each column that was asked for, the values: strings as UTF-8 bytes, not yet decoded.
        urls: The values of ``url`` (or ``meta.url``); None where there is no such column.
    """

    columns: list[list[Any]]
    urls: list[Any] | None


@dataclasses.dataclass(frozen=True, slots=True)
class RowGroup:
    """What a file's footer says of a row group."""

    num_rows: int
    size_bytes: int


def row_groups(path: Path) -> list[RowGroup]:
    """The row groups of a file.

    Raises:
        DamagedParquet: The footer cannot be read.
    """
    with _open(path) as file:
        return [_row_group(file, number) for number in range(file.metadata.num_row_groups)]


def read_rows(
    path: Path, columns: Sequence[str], *, begin: int = 0, end: int = 0
) -> Iterator[tuple[Rows, float]]:
    """Reads columns of some row groups, about half a megabyte at a time.

    Args:
        path: The file.
        columns: Their names; ``url`` is read besides where there is one.
        begin: First row group.
        end: One past the last; 0 for all.

    Yields:
        Rows, and which share they are of all that are read.

    Raises:
        DataError: A column is missing; names those that are there.
        DamagedParquet: The file breaks off; what was yielded is good.
        MachineError: pyarrow is not installed.
    """
    with _open(path) as file:
        schema = file.schema_arrow
        require_columns(path, columns, schema.names)
        url = _url_column(schema)
        wanted = list(dict.fromkeys([*columns, *([url] if url else [])]))
        total = sum(_row_group(file, n).num_rows for n in range(begin, end or file.metadata.num_row_groups))
        for batch in _batches(path, file, wanted, begin, end):
            values = [_values(batch.column(name)) for name in columns]
            urls = None
            if url == "url":
                urls = _values(batch.column("url"))
            elif url:
                urls = [meta and meta.get("url") for meta in batch.column("meta").to_pylist()]
            yield Rows(values, urls), batch.num_rows / total


def read_dicts(path: Path, required: str) -> Iterator[tuple[dict[str, Any], float]]:
    """Reads every row as a dictionary of values like JSON's, and which share it is of the file.

    Raises:
        DataError: The required column is missing.
        DamagedParquet: The file breaks off; what was yielded is good.
        MachineError: pyarrow is not installed.
    """
    with _open(path) as file:
        names = file.schema_arrow.names
        require_columns(path, [required], names)
        total = max(1, file.metadata.num_rows)
        for batch in _batches(path, file, names, 0, 0):
            columns = [_values(batch.column(name)) for name in names]
            for row in zip(*columns, strict=True):
                yield dict(zip(names, row, strict=True)), 1 / total


def require_columns(path: Path, columns: Sequence[str], there: Sequence[str]) -> None:
    """Refuses a file without a column that is asked for.

    Raises:
        DataError: Naming the columns that are there.
    """
    for column in columns:
        if column not in there:
            raise DataError(
                f"no column {column!r}; the columns are: {', '.join(there) or 'none'}",
                where=path,
                fix="Name the column that holds the text with --key, or leave the file out.",
            )


def plain(value: Any) -> Any:
    """A value as JSON has it: dates as ISO 8601, bytes as UTF-8 or else base64, the rest as text."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(child) for child in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)


def _open(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MachineError(
            "reading Parquet needs pyarrow", where=path, fix="Type: pip install 'groundup[parquet]'"
        ) from None
    try:
        # Without these, a whole column of a row group is held at once, however large.
        return pyarrow.parquet.ParquetFile(
            path, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True
        )
    except (pyarrow.ArrowException, OSError) as error:
        raise _of(error, path) from None


def _of(error: Exception, path: Path) -> DataError:
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(
            f"cannot read the file ({error.strerror})",
            where=path,
            fix="Make it readable or leave it out.",
        )
    what = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return DamagedParquet(f"the Parquet file is damaged ({what})", where=path)


def _row_group(file: Any, number: int) -> RowGroup:
    group = file.metadata.row_group(number)
    size = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
    return RowGroup(group.num_rows, size)


def _batches(path: Path, file: Any, columns: Sequence[str], begin: int, end: int) -> Iterator[Any]:
    import pyarrow

    for number in range(begin, end or file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
        num_rows = min(_MOST_ROWS, max(1, _BATCH_BYTES // row_bytes))
        try:
            yield from file.iter_batches(
                batch_size=num_rows, columns=list(columns), row_groups=[number], use_threads=False
            )
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _of(error, path) from None


def _url_column(schema: Any) -> str:
    import pyarrow

    if "url" in schema.names:
        return "url"
    if "meta" in schema.names:
        meta = schema.field("meta").type
        if pyarrow.types.is_struct(meta) and any(field.name == "url" for field in meta):
            return "meta.url"
    return ""


def _values(column: Any) -> list[Any]:
    """The values; strings as bytes, for one that is not UTF-8 would spoil them all."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    types = pyarrow.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        column = column.cast(pyarrow.large_binary())
    values: list[Any] = column.to_pylist()
    return values
