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
    path: Path, columns: Sequence[str] | None, *, begin: int = 0, end: int = 0, required: str = ""
) -> Iterator[tuple[list[dict[str, Any]], float]]:
    """Reads rows of some row groups, about half a megabyte at a time; strings come as UTF-8 bytes.

    Args:
        path: The file.
        columns: Their names, ``url`` or ``meta.url`` being read besides where there is one; None for all.
        begin: First row group.
        end: One past the last; 0 for all.
        required: A column that must be there where ``columns`` is None.

    Yields:
        Rows, and which share they are of all that are read.

    Raises:
        DataError: A column is missing; names those that are there.
        DamagedParquet: The file breaks off; what was yielded is good.
        MachineError: pyarrow is not installed.
    """
    with _open(path) as file:
        schema = file.schema_arrow
        require_columns(path, [required] if columns is None else columns, schema.names)
        wanted = schema.names if columns is None else list(dict.fromkeys([*columns, *_url_columns(schema)]))
        total = sum(_row_group(file, n).num_rows for n in range(begin, end or file.metadata.num_row_groups))
        for batch in _batches(path, file, wanted, begin, end):
            names = batch.schema.names
            values = [_values(batch.column(name)) for name in names]
            rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
            yield rows, len(rows) / total


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


def _url_columns(schema: Any) -> list[str]:
    import pyarrow

    if "url" in schema.names:
        return ["url"]
    if "meta" in schema.names:
        meta = schema.field("meta").type
        if pyarrow.types.is_struct(meta) and any(field.name == "url" for field in meta):
            return ["meta.url"]
    return []


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
