"""The values of ``config.json`` are of the right kind: checked by key before anything is computed."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundup.core.errors import CheckpointError

_MOST, _MOST_LAYERS = 1 << 28, 10_000  # beyond any model: sizes multiply, and layers are built one by one


@dataclasses.dataclass(frozen=True)
class ValueRule:
    """What a value may be.

    Attributes:
        fits: Whether a value is right.
        text: The same in words.
        nullable: Whether null is right too.
    """

    fits: Callable[[Any], bool]
    text: str
    nullable: bool = False

    def or_null(self) -> "ValueRule":
        """The same rule for a key that may be null."""
        return dataclasses.replace(self, nullable=True)


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


COUNT = ValueRule(lambda value: _is_count(value, _MOST), f"a whole number from 1 to {_MOST:,}")
LAYERS = ValueRule(lambda value: _is_count(value, _MOST_LAYERS), f"a whole number from 1 to {_MOST_LAYERS:,}")
POSITIVE = ValueRule(lambda value: _is_number(value) and value > 0, "a number above 0")
NOT_NEGATIVE = ValueRule(lambda value: _is_number(value) and value >= 0, "a number, 0 or more")
PROBABILITY = ValueRule(lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 to below 1")
SWITCH = ValueRule(lambda value: isinstance(value, bool), "true or false")
WHOLE = ValueRule(lambda value: type(value) is int and value >= 0, "a whole number")
LIST = ValueRule(lambda value: isinstance(value, list), "a list")
WORD = ValueRule(lambda value: isinstance(value, str), "a name in quotes")


def require_values(
    theirs: Mapping[str, Any],
    path: Path,
    *,
    required: tuple[str, ...],
    values: Mapping[str, ValueRule],
    multiples: tuple[tuple[str, str], ...] = (),
    group: str = "",
) -> None:
    """Refuses a required key that is missing or null, and a value that its key cannot have.

    Args:
        theirs: The content of ``config.json``, or a group of settings in it.
        path: The file.
        required: Keys that must be there.
        values: What each known key may be.
        multiples: Pairs of keys of which the first is a multiple of the second.
        group: The name of the group, with a dot.

    Raises:
        CheckpointError: Names the file, the key, the value and the rule.
    """
    for key in required:
        if theirs.get(key) is None:
            raise CheckpointError(f"{key} is missing", where=path, fix="Copy the model's config.json again.")
    for key, rule in values.items():
        value = theirs.get(key)
        if key in theirs and not rule.fits(value) and not (value is None and rule.nullable):
            raise _wrong(f"{group}{key} is {value!r}, it must be {rule.text}", path)
    for whole, part in multiples:
        if theirs.get(whole) and theirs.get(part) and theirs[whole] % theirs[part]:
            raise _wrong(
                f"{whole} is {theirs[whole]}, not a multiple of {part}, which is {theirs[part]}", path
            )


def _wrong(what: str, path: Path) -> CheckpointError:
    return CheckpointError(what, where=path, fix="Correct config.json.")
