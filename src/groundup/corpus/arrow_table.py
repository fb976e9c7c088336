"""Arrow files, such as Hugging Face's ``datasets`` keep their rows in (extra ``[parquet]``: pyarrow)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from groundup.core.compressed import DamagedFile

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_MAGIC = b"ARROW1"


class ArrowTable:
    """The rows of a file, mapped into memory; a record batch of it is what a row group is of a Parquet file.

    Raises:
        DamagedFile: The stream has no end.
        pyarrow.ArrowException: It is no Arrow file.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow

        self._path = path
        with path.open("rb") as file:
            self._is_stream = file.read(len(_MAGIC)) != _MAGIC
            file.seek(max(0, path.stat().st_size - len(_END_OF_STREAM)))
            is_cut = self._is_stream and file.read() != _END_OF_STREAM
        if is_cut:
            raise DamagedFile("the Arrow stream is cut off: it has no end", where=path)
        self._file = pyarrow.memory_map(str(path))
        self.schema = self._reader().schema

    def __enter__(self) -> "ArrowTable":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def groups(self) -> list[tuple[int, int]]:
        """Rows and bytes of each record batch."""
        return [(batch.num_rows, batch.nbytes) for batch in self._batches()]

    def batches(self, columns: Sequence[str], begin: int, end: int, most_bytes: int) -> Iterator[Any]:
        """Rows of some record batches, about so many bytes at a time."""
        for number, batch in enumerate(self._batches()):
            if number < begin:
                continue
            if end and number >= end:
                return
            chosen = batch.select(list(columns))
            row_bytes = max(1, chosen.nbytes // max(1, chosen.num_rows))
            step = max(1, most_bytes // row_bytes)
            for first in range(0, chosen.num_rows, step):
                yield chosen.slice(first, step)

    def _reader(self) -> Any:
        import pyarrow.ipc

        self._file.seek(0)
        return (pyarrow.ipc.open_stream if self._is_stream else pyarrow.ipc.open_file)(self._file)

    def _batches(self) -> Iterator[Any]:
        reader = self._reader()
        if self._is_stream:
            yield from reader
        else:
            yield from map(reader.get_batch, range(reader.num_record_batches))
