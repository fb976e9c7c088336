"""What several verbs print: rows and tables, JSON, sizes of folders, documents and their origins."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Prints names and values in two columns."""
    width = max(len(name) for name, _ in rows)
    print("".join(f"{name:<{width}}  {value}\n" for name, value in rows), end="")


def new_table(headings: Sequence[str]) -> "Table":
    """Begins a table of names and numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def print_json(tree: object) -> None:
    """Prints plain values as JSON."""
    import orjson

    sys.stdout.write(orjson.dumps(tree, option=orjson.OPT_INDENT_2).decode() + "\n")


def print_excerpt(text: str, characters: int) -> None:
    """Prints the beginning of a text, indented, up to so many characters; nothing for 0."""
    if characters:
        shown = text[:characters] + (" ..." if len(text) > characters else "")
        print("".join(f"    | {line}\n" for line in shown.splitlines() or [""]), end="")


def origin_of(source: str, line: int | None, url: str | None) -> str:
    """Formats where a document came from: file, line and URL, as far as they are recorded."""
    return f"{source}{f':{line}' if line else ''}  {url or ''}".strip() if source else "origin not recorded"


def folder_bytes(folder: Path) -> int:
    """Sums the sizes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def human_bytes(count: float) -> str:
    """Formats ``1234567`` as ``1.23 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
