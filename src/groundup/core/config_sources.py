"""The layers of a config: presets, YAML files and dotted overrides, merged into one tree of plain values."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from groundup.core.errors import ConfigError

Tree = dict[str, Any]

Layer = tuple[Tree, str]
"""Values, and where they come from."""


def merged(
    file: Path | None,
    overrides: Sequence[str],
    presets: Mapping[str, Path],
    derive: Callable[[Mapping[str, Any]], Layer | None] = lambda _: None,
    over_file: tuple[Tree, Mapping[str, str]] = ({}, {}),
) -> tuple[Tree, dict[str, str]]:
    """The values of a preset, a file and overrides, and where each dotted key came from.

    Args:
        file: A YAML file; its top-level key ``preset`` names the preset.
        overrides: ``dotted.key=value``; the value is read as YAML, ``preset=NAME`` too.
        presets: Name -> YAML file.
        derive: From the values of file and overrides, sections that stand instead of the preset's.
        over_file: Values that win over the file's, and where each dotted key came from.

    Raises:
        ConfigError: A missing file, an unknown preset, invalid YAML.
    """
    file_tree, file_origins = read_yaml(file) if file else ({}, {})
    line_tree, line_origins = read_overrides(overrides)
    name = line_tree.pop("preset", None) or file_tree.pop("preset", None)
    file_tree.pop("preset", None)
    tree: Tree = {}
    origins: dict[str, str] = {}
    if name is not None:
        if name not in presets:
            raise ConfigError(
                f"no preset {name!r}; there are {', '.join(sorted(presets))}",
                where=line_origins.get("preset") or file_origins.get("preset", ""),
                fix=nearest(str(name), presets),
            )
        preset_tree, _ = read_yaml(presets[name])
        merge(tree, preset_tree)
        origins.update({key: f"preset {name}" for key, _ in leaves(preset_tree)})
    given: Tree = {}
    for layer in (file_tree, over_file[0], line_tree):
        merge(given, layer)
    derived, source = derive(given) or ({}, "")
    tree.update(derived)
    origins.update({key: source for key, _ in leaves(derived)})
    merge(tree, given)
    for layer_origins in (file_origins, over_file[1], line_origins):
        origins.update(layer_origins)
    return tree, origins


class Loader(yaml.SafeLoader):
    """YAML in which ``3e-4`` is a number, as in YAML 1.2."""


NUMBER = re.compile(
    r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)$|^[-+]?\d[\d_]*\.[\d_]*$|^[-+]?\.\d+$"
)
"""Plain scalars that are floats; a writer must quote a string of this form."""
NUMBER_BEGINS = list("-+0123456789.")
Loader.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, NUMBER_BEGINS)


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """A YAML file's tree, and ``file:line`` of each of its leaves."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the config file ({error})", where=path, fix="Check the path."
        ) from None
    try:
        node = yaml.compose(text, Loader=Loader)
        tree = yaml.load(text, Loader=Loader)  # noqa: S506  # a SafeLoader
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


def read_overrides(overrides: Sequence[str]) -> tuple[Tree, dict[str, str]]:
    """The tree of ``dotted.key=value`` words, and where each key came from."""
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
            value = yaml.load(text, Loader=Loader)  # noqa: S506  # a SafeLoader
        except yaml.YAMLError:
            raise ConfigError(
                f"the value of {key} is not valid YAML: {text!r}", where="command line"
            ) from None
        layer: dict[str, Any] = {}
        _put(layer, key.split("."), value)
        merge(tree, layer)
        origins[key] = f"command line ({override})"
    return tree, origins


def _put(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = value


def merge(tree: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Lays ``layer`` over ``tree``; another ``kind`` replaces the choice below it whole.

    Of a list, ``stages.2.seed`` or ``stages.shuffle.seed`` means the element of that number, or the first of
    that kind.
    """
    for key, value in layer.items():
        below = tree.get(key)
        if isinstance(value, Mapping) and isinstance(below, list):
            for name, child in value.items():
                merge(_element(below, name, key), child)
        elif isinstance(value, Mapping) and isinstance(below, dict):
            if "kind" in value and "kind" in below and value["kind"] != below["kind"]:
                tree[key] = dict(value)
            else:
                merge(below, value)
        else:
            tree[key] = _copy(value)


def _element(items: list[Any], name: str, key: str) -> Tree:
    kinds = [str(item.get("kind", "")) if isinstance(item, dict) else "" for item in items]
    number = kinds.index(name) if name in kinds else int(name) if name.isdecimal() else len(items)
    if number >= len(items) or not isinstance(items[number], dict):
        raise ConfigError(
            f"{key}.{name} names no element of the list",
            where="command line",
            fix=f"Name one by its number, 0 to {len(items) - 1}, or its kind: {', '.join(kinds)}.",
        )
    element: Tree = items[number]
    return element


def _copy(value: Any) -> Any:
    return {key: _copy(child) for key, child in value.items()} if isinstance(value, Mapping) else value


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value that is no mapping, with its dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nearest(name: str, known: Iterable[str]) -> str:
    """A question naming the known word most like this one; empty when none is."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"Did you mean {matches[0]!r}?" if matches else ""
