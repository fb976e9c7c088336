"""What becomes of each setting: settings of ours with their origins, notes, and those that stay open."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from groundup.core.config_sources import Tree
from groundup.core.errors import ConfigError
from groundup.deepspeed.json_lines import read_json

AUTO = "auto"
"""What Hugging Face's Trainer replaces by its own arguments."""


@dataclasses.dataclass(frozen=True)
class Note:
    """A setting without a counterpart.

    Attributes:
        where: ``file:line``.
        key: DeepSpeed's, dotted.
        text: What there is instead.
        is_harmless: Whether the model that is trained is the same without it, in the same memory.
    """

    where: str
    key: str
    text: str
    is_harmless: bool

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.text}"


@dataclasses.dataclass
class Settings:
    """A DeepSpeed config that is being read, and what it becomes.

    Attributes:
        path: Its file.
        given: Its values.
        lines: Line of each dotted key.
        tree: Settings of ours.
        origins: Dotted key of ours -> where its value comes from.
        notes: What has no counterpart.
        left_open: Dotted key of ours -> the key whose value is "auto".
        read: Dotted keys that were asked for.
    """

    path: Path
    given: Mapping[str, Any]
    lines: Mapping[str, int]
    tree: Tree = dataclasses.field(default_factory=dict)
    origins: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[Note] = dataclasses.field(default_factory=list)
    left_open: dict[str, str] = dataclasses.field(default_factory=dict)
    read: set[str] = dataclasses.field(default_factory=set)

    @classmethod
    def of(cls, path: Path) -> "Settings":
        """Reads a file."""
        return cls(path, *read_json(path))

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key; the default where it is not given, or null."""
        self.read.add(key)
        node: Any = self.given
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return default if node is None else node

    def section(self, key: str) -> bool:
        """Whether a section is given; refuses what is none."""
        found = self.value(key)
        if found is not None and not isinstance(found, Mapping):
            self.refuse(key, f"is {found!r}, and should be an object")
        return found is not None

    def is_auto(self, key: str) -> bool:
        """Whether a value is left to others."""
        return bool(self.value(key) == AUTO)

    def flag(self, key: str) -> bool:
        """The value of a switch; "auto" counts as off."""
        found = self.value(key, False)
        if not isinstance(found, bool) and found != AUTO:
            self.refuse(key, f"is {found!r}, and should be true or false")
        return found is True

    def number(self, key: str, default: float | None = None, *, least: float = 0.0) -> float | None:
        """A number; None where it is "auto", or neither given nor has a default."""
        found = self.value(key, default)
        if found is None or found == AUTO:
            return None
        is_number = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
        if not is_number or found < least:
            self.refuse(key, f"is {found!r}, and should be a number of at least {least:g}")
        return found  # type: ignore[no-any-return]

    def whole(self, key: str, default: int | None = None, *, least: int = 0) -> int | None:
        """A whole number, be it written as 5e8; None as for ``number``."""
        found = self.number(key, default, least=least)
        if found is not None and found != int(found):
            self.refuse(key, f"is {found!r}, and should be a whole number")
        return None if found is None else int(found)

    def put(self, ours: str, value: Any, *, of: str) -> None:
        """Sets a dotted key of ours to what DeepSpeed's key means; leaves it open where that is "auto"."""
        if self.is_auto(of):
            self.left_open[ours] = of
            return
        *groups, name = ours.split(".")
        node = self.tree
        for group in groups:
            node = node.setdefault(group, {})
        node[name] = value
        default = "" if self.value(of) is not None else ": DeepSpeed's default"
        self.origins[ours] = f"{self.where(of)} ({of}{default})"

    def note(self, key: str, text: str, *, is_harmless: bool = False) -> None:
        """Remembers that a key has no counterpart."""
        self.notes.append(Note(self.where(key), key, text, is_harmless))

    def where(self, key: str) -> str:
        """``file:line`` of a key, or of the section that it would be in."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return f"{self.path}:{self.lines[key]}" if key else str(self.path)

    def refuse(self, key: str, what: str, fix: str = "") -> NoReturn:
        """Raises the error of a key's value."""
        raise ConfigError(f"{key} {what}", where=self.where(key), fix=fix)
