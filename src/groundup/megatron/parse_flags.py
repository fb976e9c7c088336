"""Reads a command line as Megatron-LM's argparse does, by the table of its flags."""

import argparse
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from groundup.core.config_sources import nearest
from groundup.core.errors import ConfigError
from groundup.core.log import logger
from groundup.megatron.flag_table import Flag, flag_table

_WHERE = "pretrain_gpt"
Generation = Literal[2021, 2023, 2026]
_TYPES = {"int": int, "float": float, "str": str}


@dataclasses.dataclass(frozen=True)
class Given:
    """The flags of a command line, with Megatron-LM's defaults behind them.

    Attributes:
        values: Of the flags that were typed, by name.
        typed: How each of them was typed.
        generation: Of Megatron-LM: the one that is named, or by the flags that one alone has.
    """

    values: Mapping[str, Any]
    typed: Mapping[str, str]
    generation: Generation = 2023

    def __getitem__(self, name: str) -> Any:
        """The value of a flag: as typed, or Megatron-LM's default, or None."""
        return self.values.get(name, _defaults()[name])

    def __contains__(self, name: str) -> bool:
        """Whether a flag was typed."""
        return name in self.values

    def origin(self, *names: str) -> str:
        """Where a setting that is made of these flags comes from: what was typed of them, or the default."""
        typed = dict.fromkeys(self.typed[name] for name in names if name in self.typed)
        return ", ".join(typed) or f"Megatron-LM's default of {_flag_of(names[0])}"

    @property
    def of_generation(self) -> str:
        """Where a setting comes from that the generations have each in their own way."""
        return self.typed.get("megatron_version", f"Megatron-LM of {self.generation}, as the flags are")

    def with_values(self, values: Mapping[str, Any], source: str) -> "Given":
        """The same with values from elsewhere, which win."""
        typed = {name: f"{source} ({name})" for name in values}
        return dataclasses.replace(self, values={**self.values, **values}, typed={**self.typed, **typed})


def parse_flags(words: Sequence[str]) -> Given:
    """Reads the words of a command line; what has no effect is named in one warning.

    Raises:
        ConfigError: With every flag that is unknown, that needs another value, or that is not supported.
    """
    table = flag_table()
    parser = _parser(table)
    known, rest = parser.parse_known_args(list(words))
    problems = [_unknown(word, table) for word in rest if word.startswith("--")]
    problems += [f"{word}: belongs to no flag" for word in _loose(rest)]
    harmless: list[str] = []
    values: dict[str, Any] = {}
    typed: dict[str, str] = {}
    for name, value in vars(known).items():
        flag = table[name]
        if flag.refused and not (flag.unless is not None and value == type(value)(flag.unless)):
            problems.append(f"{_as_typed(flag, value)}: not supported: {flag.refused}")
        elif flag.harmless:
            harmless.append(flag.flag)
        elif flag.key:
            if flag.dest in values and values[flag.dest] != value:
                problems.append(f"{typed[flag.dest]} and {_as_typed(flag, value)} are the same setting")
            values[flag.dest] = value
            typed[flag.dest] = _as_typed(flag, value)
    if problems:
        raise _error(problems)
    if harmless:
        logger.warning("without effect here: %s (groundup megatron flags says why)", " ".join(harmless))
    version = values.get("megatron_version")
    return Given(values, typed, version or _generation(table[name] for name in vars(known)))


def _parser(table: Mapping[str, Flag]) -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for flag in table.values():
        settings: dict[str, Any] = {"dest": flag.flag}
        if flag.type in ("set", "unset"):
            settings |= {"action": "store_const", "const": flag.type == "set"}
        elif flag.type == "words":
            settings |= {"nargs": "*"}
        elif flag.type == "ignored":
            settings |= {"nargs": "?"}
        else:
            settings |= {"type": _TYPES[flag.type], "choices": flag.choices or None}
        parser.add_argument(flag.flag, **settings)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _error([message.removeprefix("argument ")])


def _error(problems: Sequence[str]) -> ConfigError:
    fix = "`groundup megatron flags` lists what there is, `groundup megatron flags WORD` what has the word."
    if len(problems) == 1:
        return ConfigError(problems[0], where=_WHERE, fix=fix)
    listed = "\n  ".join(problems)
    return ConfigError(f"{len(problems)} problems:\n  {listed}\n{fix}", where=_WHERE)


def _unknown(word: str, table: Mapping[str, Flag]) -> str:
    flag = word.partition("=")[0]
    return f"{flag}: no such flag. {nearest(flag, table)}".rstrip()


def _loose(rest: Sequence[str]) -> list[str]:
    """Words that follow no unknown flag, whose values they may be."""
    return [word for before, word in zip(("", *rest), rest, strict=False) if not before and word[:2] != "--"]


def _as_typed(flag: Flag, value: Any) -> str:
    if flag.type in ("set", "unset"):
        return flag.flag
    return f"{flag.flag} {' '.join(map(str, value)) if isinstance(value, list) else value}"


def _generation(flags: Iterable[Flag]) -> Generation:
    """The generation of Megatron-LM that has all the flags: the newest that a flag is of."""
    ages = {flag.age for flag in flags}
    return 2026 if 2026 in ages else 2021 if 2021 in ages else 2023


@functools.cache
def _defaults() -> Mapping[str, Any]:
    """Megatron-LM's default of each name: of a switch, what it is without it."""
    found: dict[str, Any] = {}
    for flag in flag_table().values():
        of_switch = {"set": False, "unset": True}
        default = of_switch.get(flag.type, flag.default)
        if found.get(flag.dest) is None:
            found[flag.dest] = default
    return found


def _flag_of(name: str) -> str:
    return next(flag.flag for flag in flag_table().values() if flag.dest == name)
