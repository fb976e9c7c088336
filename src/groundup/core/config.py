"""Typed configs: frozen dataclasses, filled from presets, a YAML file and dotted overrides.

A config class is a dataclass declared with ``@config``; a choice is a union of such classes, each
with its own ``kind`` literal, annotated with ``ByKind``. Every problem is reported at once, with
where the value came from and, for an unknown key, the nearest known one.
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, dataclass_transform

import pydantic
import yaml

from groundup.core.errors import ConfigError

T = TypeVar("T")

ByKind = pydantic.Discriminator("kind")
"""Annotation of a union of config classes: the ``kind`` key picks one."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Declares a config class: frozen, keyword-only, and strict about unknown keys."""
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


@dataclasses.dataclass(frozen=True)
class Resolved(Generic[T]):
    """A config and, for each dotted key, where its value came from."""

    value: T
    origins: dict[str, str]

    def render(self) -> str:
        """The config as YAML, each value followed by its origin as a comment."""
        tree = to_dict(self.value)
        origins = [self.origins.get(key, "default") for key, _ in _leaves(tree)]
        lines = _yaml_lines(tree)
        width = max(len(line) for line, _ in lines)
        values = iter(origins)
        return "\n".join(f"{line:<{width}}  # {next(values)}" if leaf else line for line, leaf in lines)


def to_dict(value: Any) -> dict[str, Any]:
    """A config as plain JSON-like values."""
    dumped: dict[str, Any] = pydantic.TypeAdapter(type(value)).dump_python(value, mode="json")
    return dumped


def to_yaml(value: Any) -> str:
    """A config as YAML that ``resolve`` reads back to an equal config."""
    return yaml.dump(to_dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def from_dict(cls: type[T], tree: Mapping[str, Any], *, where: object) -> T:
    """Builds a config from plain values; missing keys take their defaults.

    Raises:
        ConfigError: With all problems found; ``where`` names the source of the values.
    """
    origins = {key: str(where) for key, _ in _leaves(tree)}
    return _validate(cls, tree, origins)


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
    file_tree, file_origins = _read_yaml(file) if file else ({}, {})
    line_tree, line_origins = _read_overrides(overrides)
    name = line_tree.pop("preset", None) or file_tree.pop("preset", None)
    file_tree.pop("preset", None)
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if name is not None:
        if name not in presets:
            raise ConfigError(
                f"no preset {name!r}; there are {', '.join(sorted(presets))}",
                where=line_origins.get("preset") or file_origins.get("preset", ""),
                fix=_nearest(str(name), presets),
            )
        preset_tree, _ = _read_yaml(presets[name])
        _merge(tree, preset_tree)
        origins.update({key: f"preset {name}" for key, _ in _leaves(preset_tree)})
    for layer, layer_origins in ((file_tree, file_origins), (line_tree, line_origins)):
        _merge(tree, layer)
        origins.update(layer_origins)
    return Resolved(_validate(cls, tree, origins), origins)


class _Dumper(yaml.SafeDumper):
    """YAML whose strings read back the same, odd line breaks included."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # U+0085 and its like are left unescaped in plain style, and read back as spaces.
    style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)


# Reading


class _Loader(yaml.SafeLoader):
    """YAML in which ``3e-4`` is a number, as in YAML 1.2."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)$|^[-+]?\d[\d_]*\.[\d_]*$|^[-+]?\.\d+$"
    ),
    list("-+0123456789."),
)


def _read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """A YAML file's tree, and ``file:line`` of each of its leaves."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the config file ({error})", where=path, fix="Check the path."
        ) from None
    try:
        node = yaml.compose(text, Loader=_Loader)
        tree = yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"not valid YAML: {problem}", where=f"{path}:{line}") from None
    if tree is None:
        return {}, {}
    if not isinstance(tree, dict):
        raise ConfigError("a config file holds `key: value` lines", where=path)
    return tree, dict(_lines(node, path, ""))


def _lines(node: Any, path: Path, prefix: str) -> Iterator[tuple[str, str]]:
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        line = key_node.start_mark.line + 1
        if key in seen:
            raise ConfigError(f"{key} is given twice, first on line {seen[key]}", where=f"{path}:{line}")
        seen[key] = line
        yield key, f"{path}:{line}"
        if isinstance(value_node, yaml.MappingNode):
            yield from _lines(value_node, path, f"{key}.")


def _read_overrides(overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(
                f"{override!r} is not of the form key.sub=value",
                where="command line",
                fix="Write e.g. optimizer.lr=3e-4.",
            )
        try:
            value = yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader
        except yaml.YAMLError:
            raise ConfigError(
                f"the value of {key} is not valid YAML: {text!r}", where="command line"
            ) from None
        layer: dict[str, Any] = {}
        _put(layer, key.split("."), value)
        _merge(tree, layer)
        origins[key] = f"command line ({override})"
    return tree, origins


def _put(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = value


def _merge(tree: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Lays ``layer`` over ``tree``; another ``kind`` replaces the choice below it whole."""
    for key, value in layer.items():
        below = tree.get(key)
        if isinstance(value, Mapping) and isinstance(below, dict):
            if "kind" in value and "kind" in below and value["kind"] != below["kind"]:
                tree[key] = dict(value)
            else:
                _merge(below, value)
        else:
            tree[key] = _copy(value)


def _copy(value: Any) -> Any:
    return {key: _copy(child) for key, child in value.items()} if isinstance(value, Mapping) else value


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


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


# Checking


def _validate(cls: type[T], tree: Mapping[str, Any], origins: Mapping[str, str]) -> T:
    with_kinds = _fill_kinds(cls, tree)
    try:
        return pydantic.TypeAdapter(cls).validate_python(with_kinds)
    except pydantic.ValidationError as error:
        problems = [_problem(cls, problem, tree, origins) for problem in error.errors()]
    if len(problems) == 1:
        raise ConfigError(problems[0])
    raise ConfigError(f"{len(problems)} problems in the config:\n  " + "\n  ".join(problems))


def _fill_kinds(hint: Any, tree: Any) -> Any:
    """Adds the ``kind`` of the default choice where the tree leaves it out."""
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


def _problem(cls: type, problem: Any, tree: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """One sentence for one pydantic error: where, key, what was given, the rule, the nearest match."""
    keys, owner = _dotted(cls, problem["loc"], _fill_kinds(cls, tree))
    dotted = ".".join(keys)
    where = next((origins[key] for key in _prefixes(keys) if key in origins), "")
    head = f"{where}: " if where else ""
    given = problem.get("input")
    match problem["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            known = [field.name for field in dataclasses.fields(owner)] if owner else []
            prefix = ".".join(keys[:-1])
            inside = f" in {prefix}" if prefix else ""
            hint = _nearest(keys[-1], known) or f"Known keys{inside}: {', '.join(known)}."
            return f"{head}unknown key {dotted}. {hint}"
        case "missing" | "missing_keyword_only_argument" | "missing_argument":
            return f"{head}{dotted} is required. Set it in the config file or as {dotted}=VALUE."
        case "union_tag_invalid":
            expected = problem["ctx"]["expected_tags"]
            tag = problem["ctx"]["tag"]
            nearest = _nearest(tag, re.findall(r"'([^']+)'", expected))
            return f"{head}{dotted}.kind is {tag!r}, expected one of {expected}. {nearest}".rstrip()
        case "union_tag_not_found":
            return f"{head}{dotted} needs a kind."
        case "value_error":
            message = str(problem["ctx"]["error"])
            return f"{head}{dotted + ': ' if dotted else ''}{message}"
        case _:
            nearest = ""
            if problem["type"] == "literal_error" and isinstance(given, str):
                nearest = " " + _nearest(given, re.findall(r"'([^']+)'", problem["ctx"]["expected"]))
            rule = problem["msg"][0].lower() + problem["msg"][1:]
            return f"{head}{dotted} = {given!r}: {rule}.{nearest}".rstrip()


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
        hints = typing.get_type_hints(current, include_extras=True) if current else {}
        hint = hints.get(part)
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return keys, owner


def _prefixes(keys: Sequence[str]) -> Iterator[str]:
    for end in range(len(keys), 0, -1):
        yield ".".join(keys[:end])


def _nearest(name: str, known: typing.Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"Did you mean {matches[0]!r}?" if matches else ""
