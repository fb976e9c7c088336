"""Reading Parquet and Arrow files by columns and in batches (extra ``[parquet]``: pyarrow)."""

import base64
import dataclasses
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from groundup.core.compressed import DamagedFile
from groundup.core.errors import DataError, MachineError
from groundup.corpus.arrow_table import ArrowTable
from groundup.corpus.dataset_folder import ARROW_ENDING
from groundup.corpus.text_key import proposed_key

MARK = b"groundup.documents"
"""Stands in the metadata of files whose column ``meta`` is JSON, as ``write_parquet`` writes them."""
_BATCH_BYTES = 1 << 19
_MOST_ROWS = 4096
_BUFFER_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class RowGroup:
    """What a file says of a row group, or of a record batch."""

    num_rows: int
    size_bytes: int


def row_groups(path: Path) -> list[RowGroup]:
    """The row groups of a file.

    Raises:
        DamagedFile: The footer cannot be read.
    """
    with _open(path) as table:
        return _groups(path, table)


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
        DamagedFile: The file breaks off; what was yielded is good.
        MachineError: pyarrow is not installed.
    """
    with _open(path) as table:
        schema = table.schema
        require_columns(
            path, columns if columns is not None else [required] if required else [], schema.names
        )
        wanted = schema.names if columns is None else list(dict.fromkeys([*columns, *_url_columns(schema)]))
        groups = _groups(path, table)[begin : end or None]
        total = sum(group.num_rows for group in groups)
        is_ours = MARK in (schema.metadata or {})
        for names, values in _batches(path, table, wanted, begin, end):
            rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
            if is_ours and "meta" in names:
                for row in rows:
                    row["meta"] = orjson.loads(row["meta"])
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
                fix="Name the column that holds the text with --key"
                + (f" {near}" if (near := proposed_key(column, dict.fromkeys(there))) else "")
                + ", or leave the file out.",
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


class _ParquetTable:
    """A Parquet file, with the methods of ``ArrowTable``."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        # Without these, a whole column of a row group is held at once, however large.
        self._file = pyarrow.parquet.ParquetFile(
            path, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True
        )
        self.schema = self._file.schema_arrow

    def __enter__(self) -> "_ParquetTable":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def groups(self) -> list[tuple[int, int]]:
        groups = map(self._file.metadata.row_group, range(self._file.metadata.num_row_groups))
        return [
            (group.num_rows, sum(group.column(n).total_compressed_size for n in range(group.num_columns)))
            for group in groups
        ]

    def batches(self, columns: Sequence[str], begin: int, end: int, most_bytes: int) -> Iterator[Any]:
        for number in range(begin, end or self._file.metadata.num_row_groups):
            group = self._file.metadata.row_group(number)
            row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
            num_rows = min(_MOST_ROWS, max(1, most_bytes // row_bytes))
            yield from self._file.iter_batches(
                batch_size=num_rows, columns=list(columns), row_groups=[number], use_threads=False
            )


def _open(path: Path) -> ArrowTable | _ParquetTable:
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise MachineError(
            "reading Parquet and Arrow needs pyarrow",
            where=path,
            fix="Type: pip install 'groundup[parquet]'",
        ) from None
    try:
        return ArrowTable(path) if path.suffix.lower() == ARROW_ENDING else _ParquetTable(path)
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
    kind = "Arrow" if path.suffix.lower() == ARROW_ENDING else "Parquet"
    return DamagedFile(f"the {kind} file is damaged ({what})", where=path)


def _groups(path: Path, table: ArrowTable | _ParquetTable) -> list[RowGroup]:
    import pyarrow

    try:
        return [RowGroup(*group) for group in table.groups()]
    except (pyarrow.ArrowException, OSError) as error:
        raise _of(error, path) from None


def _batches(
    path: Path, table: ArrowTable | _ParquetTable, columns: Sequence[str], begin: int, end: int
) -> Iterator[tuple[list[str], list[list[Any]]]]:
    """Names and values of the columns of each batch."""
    import pyarrow

    try:
        for batch in table.batches(columns, begin, end, _BATCH_BYTES):
            names = batch.schema.names
            is_checked = isinstance(table, _ParquetTable)
            yield names, [_values(batch.column(name), is_checked) for name in names]
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


def _values(column: Any, is_checked: bool) -> list[Any]:
    """The values; strings as bytes, for one that is not UTF-8 would spoil them all.

    Args:
        column: Of a batch.
        is_checked: Else its offsets may lead astray, as those of a damaged Arrow file do.
    """
    import pyarrow

    kind = column.type
    types = pyarrow.types
    if types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        column = column.view(pyarrow.binary() if types.is_string(kind) else pyarrow.large_binary())
    elif types.is_string_view(kind):
        column = column.cast(pyarrow.large_binary())
    if not is_checked:
        column.validate(full=True)
    values: list[Any] = column.to_pylist()
    return values
