"""The items of evaluation files in the forms in which they are published: JSON Lines, JSON, CSV and TSV."""

import csv
import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from groundup.core.compressed import DamagedFile
from groundup.core.errors import DataError
from groundup.corpus.line_blocks import decompressed
from groundup.corpus.sources import content_ending

_SHOWN = 40  # characters of a field's name, which may be a text where a file lacks its header


class MissingFieldError(DataError):
    """An item without a field: it is of another task, or of another form."""


@dataclasses.dataclass(frozen=True)
class Record:
    """Holds one item as published.

    Attributes:
        where: ``file:line``, or the file and the item's number.
        fields: By name.
    """

    where: str
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name not in self.fields:
            names = ", ".join(str(name)[:_SHOWN] for name in self.fields)
            raise MissingFieldError(
                f"the item has no field {name!r}; it has {names or 'none'}",
                where=self.where,
                fix="Name a file of this task in its official format: see docs/guides/evaluation.md.",
            )
        return self.fields[name]

    def text(self, name: str) -> str:
        """Returns a field that must be a string."""
        value = self[name]
        if not isinstance(value, str):
            raise DataError(
                f"field {name!r} is {value!r}, and must be a text", where=self.where, fix="Mend the item."
            )
        return value

    def texts(self, name: str) -> list[str]:
        """Returns a field that must be a list of strings."""
        value = self[name]
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise DataError(
                f"field {name!r} is {value!r}, and must be a list of texts",
                where=self.where,
                fix="Mend the item.",
            )
        return value

    def index(self, name: str, labels: Sequence[object]) -> int:
        """Returns the place of a field's value among the labels that it may have, compared as text."""
        value = str(self[name]).strip()
        known = [str(label) for label in labels]
        if value not in known:
            raise DataError(
                f"field {name!r} is {value!r}, and must be one of {', '.join(known)}",
                where=self.where,
                fix="Name a file with labels (those of many test splits are secret), or mend the item.",
            )
        return known.index(value)


def read_records(path: Path, *, columns: Sequence[str] = ()) -> Iterator[Record]:
    """Reads the items of a file.

    Args:
        path: ``.jsonl``, ``.json`` (lines, or one array), ``.csv`` or ``.tsv``, perhaps with ``.gz`` or
            ``.zst``.
        columns: Names of the columns of a CSV file whose first line does not name them.

    Raises:
        DataError: The file cannot be read as such.
    """
    ending = content_ending(path)
    try:
        with decompressed(path) as stream:
            content = stream.read()
            text = content.decode("utf-8-sig")
    except (DamagedFile, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", where=path, fix="Get the file again.") from None
    if ending in (".csv", ".tsv"):
        reader = csv.DictReader(
            io.StringIO(text), columns or None, delimiter="\t" if ending == ".tsv" else ",", strict=True
        )
        try:
            for fields in reader:
                given = {
                    name: value for name, value in fields.items() if name is not None and value is not None
                }
                yield Record(f"{path}:{reader.line_num}", given)
        except csv.Error as error:
            raise DataError(
                f"is no CSV: {error}", where=f"{path}:{reader.line_num}", fix="Get the file again."
            ) from None
    elif text.lstrip().startswith("["):
        for number, fields in enumerate(_parsed(text, path), start=1):
            yield _record(fields, f"{path} (item {number:,})")
    else:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield _record(_parsed(line, f"{path}:{number}"), f"{path}:{number}")


def _parsed(text: str, where: object) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DataError(
            f"is no JSON: {error}", where=where, fix="Name a file of .jsonl, .json, .csv or .tsv."
        ) from None


def _record(fields: Any, where: str) -> Record:
    if not isinstance(fields, dict):
        raise DataError(f"the item is {fields!r}, and must be an object", where=where, fix="Mend the item.")
    return Record(where, fields)
