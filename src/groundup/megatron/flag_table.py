"""The table of Megatron-LM's flags: ``flags.yaml``, read and checked."""

import functools
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from groundup.core.config import config, from_dict
from groundup.core.config_sources import read_yaml

FlagType = Literal["str", "int", "float", "words", "set", "unset", "ignored"]


@config
class Flag:
    """What one of Megatron-LM's flags is, and what becomes of it; the head of ``flags.yaml`` says more.

    Attributes:
        flag: As it is typed.
        group: In Megatron-LM's help.
        type: Of its value.
        name: Of the value.
        default: Megatron-LM's.
        choices: Values that it takes.
        key: Our setting.
        copy: Whether the value is the setting's as it is.
        harmless: Why it has no effect.
        refused: What to do instead.
        unless: The value with which it is accepted all the same.
        age: Of the only generation that has it; 0 for several.
        note: In words.
    """

    flag: str
    group: str
    type: FlagType = "str"
    name: str = ""
    default: str | int | float | None = None
    choices: tuple[str | int, ...] = ()
    key: str = ""
    copy: bool = False
    harmless: str = ""
    refused: str = ""
    unless: str | int | float | None = None
    age: Literal[0, 2021, 2026] = 0
    note: str = ""

    def __post_init__(self) -> None:
        """Checks that it is clear what becomes of the flag."""
        fates = [word for word in ("key", "harmless", "refused") if getattr(self, word)]
        if len(fates) != 1:
            raise ValueError(f"{self.flag} has {' and '.join(fates) or 'none'} of key, harmless and refused")

    @property
    def dest(self) -> str:
        """The name of the value in Megatron-LM's ``args``."""
        return self.name or self.flag.removeprefix("--").replace("-", "_")


@functools.cache
def flag_table() -> MappingProxyType[str, Flag]:
    """All flags by what is typed, in the order of their groups."""
    path = Path(str(files("groundup.megatron") / "flags.yaml"))
    tree, _ = read_yaml(path)
    found = {}
    for group, entries in tree.items():
        for flag, entry in entries.items():
            values: dict[str, Any] = {"flag": flag, "group": group, **entry}
            found[flag] = from_dict(Flag, values, where=f"{path.name}: {flag}")
    return MappingProxyType(found)


def describe_flag(flag: Flag) -> str:
    """What becomes of a flag, in a line."""
    if flag.harmless:
        fate = f"no effect: {flag.harmless}"
    elif flag.refused:
        fate = f"refused: {flag.refused}"
    else:
        fate = flag.key
    return f"{fate} ({flag.note})" if flag.note else fate
