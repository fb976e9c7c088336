"""Reads a JSON file with the line of each key, for messages; comments and last commas are allowed.

DeepSpeed reads its config by Hjson, so that files with ``//``, ``#`` and ``/* */`` are about.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from groundup.core.errors import ConfigError

_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(r'"(?:\\.|[^"\\\n])*"|,(?=\s*[}\]])')


def read_json(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the object in a file, and the line of each dotted key.

    Raises:
        ConfigError: The file cannot be read, is no JSON or no object, or gives a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read DeepSpeed's config ({error})", where=path, fix="Check the path."
        ) from None
    text = _STRING_OR_LAST_COMMA.sub(_kept_string, _STRING_OR_COMMENT.sub(_kept_string, text))
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]} (column {error.colno})",
            where=f"{path}:{error.lineno}",
        ) from None
    if not isinstance(tree, dict):
        raise ConfigError("DeepSpeed's config is one object: {...}", where=path)
    node = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)  # JSON is YAML, and this has lines
    return tree, dict(_lines(node, path, ""))


def _kept_string(found: re.Match[str]) -> str:
    """A string as it is; of a comment or comma, only its lines."""
    text = found[0]
    return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)


def _lines(node: Any, path: Path, prefix: str) -> Iterator[tuple[str, int]]:
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, line = f"{prefix}{key_node.value}", key_node.start_mark.line + 1
        if key in seen:
            raise ConfigError(f"{key} is given twice, first on line {seen[key]}", where=f"{path}:{line}")
        seen[key] = line
        yield key, line
        if isinstance(value_node, yaml.MappingNode):
            yield from _lines(value_node, path, f"{key}.")
