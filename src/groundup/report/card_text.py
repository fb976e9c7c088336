"""What the parts of a model card are written with: Markdown, and paths that tell nothing of the machine."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from groundup.checkpoint.native.folder import CHECKPOINTS

_ABSOLUTE = re.compile(r"""(?<![\w./:~])(?:~|/|[A-Za-z]:\\)[^\s'"`|,;()\[\]]*[/\\][^\s'"`|,;()\[\]]*""")
_CACHED = re.compile(r"models--([^/]+)--([^/]+)/snapshots/")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(value) for value in line)} |\n" for line in lines) + "\n"


def bullets(lines: Iterable[str]) -> str:
    """A list of Markdown."""
    return "".join(f"- {line}\n" for line in lines) + "\n"


def code(text: str, language: str) -> str:
    """A block of code."""
    return f"```{language}\n{text.strip()}\n```\n\n"


def place(path: str | Path) -> str:
    """A path without the folders that are only of this machine; a relative one as it is."""
    given = str(path)
    if "://" in given:
        return re.sub(r"//[^/@]*@", "//", given)  # without user and password
    parts = PurePath(given).parts
    if not PurePath(given).is_absolute() and parts[:1] != ("~",):
        return "/".join(part for part in parts if part != "..") or "."
    return "/".join(parts[-3:] if CHECKPOINTS in parts[-2:-1] else parts[-1:])


def without_places(text: str) -> str:
    """A text in which absolute paths are cut to their last part."""
    return _ABSOLUTE.sub(lambda match: place(match.group()), text)


def hub_id(path: str | Path) -> str | None:
    """The name that a model has on the hub, where its folder is in the hub's cache; else None."""
    found = _CACHED.search(f"{Path(path).as_posix()}/")
    return f"{found[1]}/{found[2]}" if found else None


def is_hub_id(name: str) -> bool:
    """Whether a name is one that a model can have on the hub: ``user/name``."""
    return len(name) <= 96 and _HUB_ID.fullmatch(name) is not None and not re.search(r"--|\.\.|\.git$", name)


def count(number: float, noun: str) -> str:
    """``1,420 documents``."""
    return f"{number:,.0f} {noun if number != 1 else noun.removesuffix('s')}"


def _cell(value: object) -> str:
    return str(value).replace("\n", " ").replace("|", "\\|")
