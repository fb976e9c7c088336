"""Rewards of completions: Python functions of the user's, and checks against the answer in a record."""

import dataclasses
import importlib.util
import inspect
import math
import re
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from groundup.core.errors import ConfigError, DataError

BadRewards = Literal["error", "skip"]
"""What becomes of a completion whose reward raises or is not a finite number: the run ends, or its advantage
is 0 and it is counted."""

Reward = Callable[[Any, str, Mapping[str, Any]], float]
"""Called with the prompt as in its record (a string or messages), the completion, and the record."""

CHECKS = ("exact", "regex", "number")

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*)?\.?\d+(?:[eE][-+]?\d+)?")
SHOWN = reprlib.Repr()
SHOWN.maxstring = SHOWN.maxother = 200


class _BadReward(Exception):
    """What is wrong with a reward, in words."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """The rewards of one completion.

    Attributes:
        each: Name of a reward -> its value; NaN for one that failed and is skipped.
        total: Their weighted sum; NaN where one failed.
    """

    each: dict[str, float]
    total: float


class Rewards:
    """The rewards of a run.

    Args:
        names: Of ``CHECKS``, or ``path/to/file.py:function``.
        weights: One a reward; none for 1 each.
        pattern: Of "regex": its first group, or all that it matches, is compared with the answer.
        answer_field: Of a record.
        bad: What becomes of a reward that is none.

    Raises:
        ConfigError: A name is unknown, a file cannot be read or imported, or does not hold such a function.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        weights: Sequence[float] = (),
        pattern: str = "",
        answer_field: str = "answer",
        bad: BadRewards = "error",
    ) -> None:
        self._weights = dict(zip(names, weights or [1.0] * len(names), strict=True))
        self._bad = bad
        self._functions = {name: _reward(name, pattern, answer_field) for name in names}

    def score(self, prompt: Any, completion: str, record: Mapping[str, Any], *, where: str) -> Scores:
        """Returns the rewards of a completion.

        Args:
            prompt: As in the record.
            completion: What the model wrote.
            record: Of the data.
            where: The record's file and line.

        Raises:
            DataError: A reward raised, or is not a finite number, unless that is to be skipped.
        """
        each: dict[str, float] = {}
        for name, function in self._functions.items():
            try:
                each[name] = _called(function, prompt, completion, record)
            except _BadReward as error:
                if self._bad == "error":
                    raise DataError(
                        f"{error}, for the record at {where} and the completion {SHOWN.repr(completion)}",
                        where=f"stage.reward {name}",
                        fix="Mend it, or set stage.bad_rewards=skip to count such completions and learn"
                        " nothing from them.",
                    ) from error.__cause__
                each[name] = math.nan
        return Scores(each, sum(self._weights[name] * value for name, value in each.items()))


def _called(function: Reward, prompt: Any, completion: str, record: Mapping[str, Any]) -> float:
    try:
        found: Any = function(prompt, completion, record)
    except _BadReward:
        raise
    except (Exception, SystemExit) as error:  # a user's function raises what it likes
        raise _BadReward(f"raised {type(error).__name__}: {error}{_line_of(error)}") from error
    try:
        value = math.nan if isinstance(found, str) else float(found)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise _BadReward(f"returned {SHOWN.repr(found)}, which is not a finite number")
    return value


def _line_of(error: BaseException) -> str:
    """Where in the function it was raised."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace else ""


def _reward(name: str, pattern: str, answer_field: str) -> Reward:
    """Finds the function of a name."""
    if name in CHECKS:
        return _check(name, pattern, answer_field)
    path, colon, function_name = name.rpartition(":")
    where = "stage.reward"
    if not colon or not path.endswith(".py"):
        raise ConfigError(
            f"{name!r} is neither one of {', '.join(CHECKS)} nor path/to/file.py:function", where=where
        )
    module = _imported(Path(path))
    function: Any = getattr(module, function_name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
        raise ConfigError(f"{path} has no function {function_name}; it has {', '.join(names)}", where=where)
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError as error:
        raise ConfigError(
            f"{name} cannot be called with (prompt, completion, record): {error}", where=where
        ) from None
    return function  # type: ignore[no-any-return]


def _imported(path: Path) -> Any:
    """Imports a user's file under a name of its own; what it imports from its own folder is found."""
    if not path.is_file():
        raise ConfigError(
            f"there is no file {path}", where="stage.reward", fix="It is relative to where you are."
        )
    spec = importlib.util.spec_from_file_location(f"groundup_rewards_{path.stem}", path.resolve())
    assert spec is not None and spec.loader is not None, "its name ends with .py"
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.resolve().parent))
    sys.modules[spec.name] = module  # where its data classes look for what their annotations name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file raises what it likes
        raise ConfigError(
            f"{path} cannot be imported: {type(error).__name__}: {error}",
            where="stage.reward",
            fix=f"Mend it: `python {path}` shows where.",
        ) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _check(name: str, pattern: str, answer_field: str) -> Reward:
    """Compares a completion with the record's answer: 1 where they agree, else 0."""

    def answer_of(record: Mapping[str, Any]) -> str:
        if (answer := record.get(answer_field)) is None:
            raise _BadReward(f"needs the field {answer_field!r} (stage.answer_field), which is missing")
        return str(answer)

    def exact(_: Any, completion: str, record: Mapping[str, Any]) -> float:
        return float(completion.strip() == answer_of(record).strip())

    def regex(_: Any, completion: str, record: Mapping[str, Any]) -> float:
        answer, found = answer_of(record).strip(), list(compiled.finditer(completion))
        return float(bool(found) and (found[-1][1 if compiled.groups else 0] or "").strip() == answer)

    def number(_: Any, completion: str, record: Mapping[str, Any]) -> float:
        expected = _last_number(answer_of(record))
        if expected is None:
            raise _BadReward(f"needs a number in the field {answer_field!r}, which has none")
        return float(_last_number(completion) == expected)

    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression ({error})", where="stage.pattern") from None
    if (name == "regex") and not pattern:
        raise ConfigError("stage.reward=regex needs a pattern", where="stage.pattern")
    return {"exact": exact, "regex": regex, "number": number}[name]


def _last_number(text: str) -> float | None:
    """The last number of a text; commas group its digits."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None
