"""Typed configs: frozen dataclasses, filled from presets, a YAML file and dotted overrides.

A config class is a dataclass declared with ``@config``; a choice is a union of such classes, each
with its own ``kind`` literal, annotated with ``ByKind``. Every problem is reported at once, with
where the value came from and, for an unknown key, the nearest known one.
"""

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import pydantic
import yaml

from groundup.core.config_class import config
from groundup.core.config_sources import NUMBER, NUMBER_BEGINS, leaves, merged, nearest
from groundup.core.errors import ConfigError

__all__ = [
    "ByKind",
    "Resolved",
    "config",
    "from_dict",
    "from_tree",
    "resolve",
    "to_dict",
    "to_yaml",
    "with_origins",
]

T = TypeVar("T")

ByKind = pydantic.Discriminator("kind")
"""Annotation of a union of config classes: the ``kind`` key picks one."""


@dataclasses.dataclass(frozen=True)
class Resolved(Generic[T]):
    """A config and, for each dotted key, where its value came from."""

    value: T
    origins: dict[str, str]

    def render(self) -> str:
        """The config as YAML, each value followed by its origin as a comment."""
        return with_origins(to_dict(self.value), self.origins)


def with_origins(tree: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """A tree of plain values as YAML, each followed by its origin as a comment."""
    comments = iter([origins.get(key, "default") for key, _ in leaves(tree)])
    lines = _yaml_lines(tree)
    width = max((len(line) for line, _ in lines), default=0)
    return "\n".join(f"{line:<{width}}  # {next(comments)}" if leaf else line for line, leaf in lines)


def to_dict(value: Any) -> dict[str, Any]:
    """A config as plain JSON-like values."""
    dumped: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json")
    return dumped


def to_yaml(value: Any) -> str:
    """A config as YAML that ``resolve`` reads back to an equal config."""
    return yaml.dump(to_dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def from_dict(
    cls: type[T],
    tree: Mapping[str, Any],
    *,
    where: object,
    names: Mapping[str, str] = types.MappingProxyType({}),
) -> T:
    """Builds a config from plain values; missing keys take their defaults.

    Args:
        cls: The config class.
        tree: Its values.
        where: The source of the values, for messages.
        names: Dotted key -> what the user knows it as, such as the flag that sets it.

    Raises:
        ConfigError: With all problems found.
    """
    origins = {key: str(where) for key, _ in leaves(tree)}
    return from_tree(cls, tree, origins, names)


def resolve(
    cls: type[T],
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    presets: Mapping[str, Path] = types.MappingProxyType({}),
) -> Resolved[T]:
    """Fills a config from, in rising order: defaults, the preset, the file, the overrides.

    Args:
        cls: The config class.
        file: A YAML file; its top-level key ``preset`` names the preset.
        overrides: ``dotted.key=value``; the value is read as YAML, ``preset=NAME`` too.
        presets: Name -> YAML file.

    Raises:
        ConfigError: A missing file, invalid YAML, or any number of wrong keys and values.
    """
    tree, origins = merged(file, overrides, presets)
    return Resolved(from_tree(cls, tree, origins), origins)


_adapter: Callable[[type[Any]], pydantic.TypeAdapter[Any]] = functools.cache(  # type: ignore[assignment]  # classes are hashable
    pydantic.TypeAdapter
)
"""Building one takes some 10 ms for a large config."""


class _Dumper(yaml.SafeDumper):
    """YAML whose strings read back the same, odd line breaks included."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # U+0085 and its like are left unescaped in plain style, and read back as spaces.
    style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, NUMBER_BEGINS)


def _yaml_lines(tree: Mapping[str, Any], indent: int = 0) -> list[tuple[str, bool]]:
    lines: list[tuple[str, bool]] = []
    for key, value in tree.items():
        pad = "  " * indent
        if isinstance(value, Mapping) and value:
            lines.append((f"{pad}{key}:", False))
            lines.extend(_yaml_lines(value, indent + 1))
        else:
            text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()
            lines.append((f"{pad}{key}: {text}", True))
    return lines


def from_tree(
    cls: type[T],
    tree: Mapping[str, Any],
    origins: Mapping[str, str],
    names: Mapping[str, str] = types.MappingProxyType({}),
) -> T:
    """Builds a config from plain values.

    Args:
        cls: The config class.
        tree: Its values; missing keys take their defaults.
        origins: Where each dotted key came from, for messages.
        names: Dotted key -> what the user knows it as.

    Raises:
        ConfigError: With all problems found.
    """
    with_kinds = _fill_kinds(cls, tree)
    try:
        return _adapter(cls).validate_python(with_kinds)  # type: ignore[no-any-return]
    except pydantic.ValidationError as error:
        problems = [_problem(cls, problem, tree, origins, names) for problem in error.errors()]
    if len(problems) == 1:
        raise ConfigError(problems[0])
    raise ConfigError(f"{len(problems)} problems in the config:\n  " + "\n  ".join(problems))


def _fill_kinds(hint: Any, tree: Any) -> Any:
    """Adds the ``kind`` of the default choice where the tree leaves it out."""
    if typing.get_origin(hint) is dict and isinstance(tree, Mapping):
        return {key: _fill_kinds(typing.get_args(hint)[1], value) for key, value in tree.items()}
    cls = _config_class(hint, tree)
    if cls is None or not isinstance(tree, Mapping):
        return tree
    filled = dict(tree)
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        value = tree.get(field.name)
        if isinstance(value, Mapping):
            kind = getattr(field.default, "kind", None)
            if "kind" not in value and kind is not None:
                value = {"kind": kind, **value}
            filled[field.name] = _fill_kinds(hints[field.name], value)
    return filled


def _config_class(hint: Any, tree: Any) -> Any:
    """The config class that a hint means for this value; None when it means none."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if dataclasses.is_dataclass(hint):
        return hint
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and isinstance(tree, Mapping):
        for member in typing.get_args(hint):
            if dataclasses.is_dataclass(member) and getattr(member, "kind", None) == tree.get("kind"):
                return member
    return None


def _problem(
    cls: type, problem: Any, tree: Mapping[str, Any], origins: Mapping[str, str], names: Mapping[str, str]
) -> str:
    """One sentence for one pydantic error: where, key, what was given, the rule, the nearest match."""
    keys, owner = _dotted(cls, problem["loc"], _fill_kinds(cls, tree))
    dotted = names.get(".".join(keys), ".".join(keys))
    where = next((origins[key] for key in _prefixes(keys) if key in origins), "")
    head = f"{where}: " if where else ""
    given = problem.get("input")
    match problem["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            known = [field.name for field in dataclasses.fields(owner)] if owner else []
            prefix = ".".join(keys[:-1])
            inside = f" in {prefix}" if prefix else ""
            hint = nearest(keys[-1], known) or f"Known keys{inside}: {', '.join(known)}."
            return f"{head}unknown key {dotted}. {hint}"
        case "missing" | "missing_keyword_only_argument" | "missing_argument":
            return f"{head}{dotted} is required. Set it in the config file or as {dotted}=VALUE."
        case "union_tag_invalid":
            expected = problem["ctx"]["expected_tags"]
            tag = problem["ctx"]["tag"]
            known_tag = nearest(tag, re.findall(r"'([^']+)'", expected))
            return f"{head}{dotted}.kind is {tag!r}, expected one of {expected}. {known_tag}".rstrip()
        case "union_tag_not_found":
            return f"{head}{dotted} needs a kind."
        case "value_error":
            message = str(problem["ctx"]["error"])
            return f"{head}{dotted + ': ' if dotted else ''}{message}"
        case _:
            hint = ""
            if problem["type"] == "literal_error" and isinstance(given, str):
                hint = " " + nearest(given, re.findall(r"'([^']+)'", problem["ctx"]["expected"]))
            elif problem["type"] == "string_type" and isinstance(given, int | float):
                hint = f""" Write it as text: "{given}", on a command line {dotted}='"{given}"'."""
            elif problem["type"] == "tuple_type" and isinstance(given, str | int | float):
                hint = f" Write a list: [{given}]."
            rule = problem["msg"][0].lower() + problem["msg"][1:].replace("valid tuple", "list")
            return f"{head}{dotted} = {given!r}: {rule}.{hint}".rstrip()


def _dotted(cls: type, loc: Sequence[Any], tree: Any) -> tuple[list[str], Any]:
    """Keys of a pydantic location without the union tags in it, and the class that owns the last one."""
    keys: list[str] = []
    hint: Any = cls
    owner: Any = None
    for part in loc:
        current = _config_class(hint, tree)
        if (
            current is not None
            and current is not hint
            and part == getattr(current, "kind", None)
            and part not in tree
        ):
            continue  # the tag of a union, not a key
        owner = current
        keys.append(str(part))
        if typing.get_origin(hint) is dict:
            hint = typing.get_args(hint)[1]
        elif isinstance(part, int):  # of a list
            bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
            hint = next(iter(typing.get_args(bare)), None)
        else:
            hints = typing.get_type_hints(current, include_extras=True) if current else {}
            hint = hints.get(part)
        if isinstance(part, int) and isinstance(tree, list | tuple):
            tree = tree[part] if part < len(tree) else None
        else:
            tree = tree.get(part) if isinstance(tree, Mapping) else None
    return keys, owner


def _prefixes(keys: Sequence[str]) -> Iterator[str]:
    for end in range(len(keys), 0, -1):
        yield ".".join(keys[:end])
