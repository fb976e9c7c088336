"""Pages of every setting of a run, of a corpus's recipe and of evaluation tasks, made from their classes."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types

from groundup.cli.run_config import presets
from groundup.corpus.recipe import Recipe
from groundup.eval.tasks import Task
from groundup.finetune.config import FinetuneConfig

FOLDER = "reference/settings"

_OF_FINETUNING = ("stage", "lora")
_PLAIN_TYPES = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    types.NoneType: "null",
}
_LARGEST = 2**31 - 1
_BAR = r"\|"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One key of a config class, as a reader sees it."""

    name: str
    type: str
    default: str
    description: str


def classes_of(hint: Any) -> list[type]:
    """Config classes that a type consists of, each once, in order."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    found = [cls for part in typing.get_args(hint) for cls in classes_of(part)]
    return list(dict.fromkeys(found))


def hints_of(cls: type) -> dict[str, Any]:
    """Setting -> its type, as annotated."""
    return {field.name: field.type for field in dataclasses.fields(cls) if field.init}


def settings_of(cls: type) -> list[Setting]:
    """The settings of a config class, without ``kind``, which the title tells."""
    hints = hints_of(cls)
    described = _descriptions(cls)
    return [
        Setting(field.name, _type(hints[field.name]), _default(field), described.get(field.name, ""))
        for field in dataclasses.fields(cls)
        if field.name != "kind" and field.init
    ]


def reachable(*roots: Any) -> list[type]:
    """All config classes that can be set from those given, which come first."""
    found: dict[type, None] = {}
    waiting = [cls for root in roots for cls in classes_of(root)]
    while waiting:
        cls = waiting.pop(0)
        if cls not in found:
            found[cls] = None
            waiting += [one for hint in hints_of(cls).values() for one in classes_of(hint)]
    return list(found)


ROOTS: tuple[Any, ...] = (FinetuneConfig, Recipe, Task)


def pages() -> dict[str, str]:
    """Path below docs -> Markdown of each page of settings."""
    hints = hints_of(FinetuneConfig)
    made = {"a-run": _page_of_run(hints)}
    groups = [name for name in hints if name != "kind" and classes_of(hints[name])]
    for name in groups:
        made[name.replace("_", "-")] = _page_of_group(name, hints[name])
    made["recipe"] = _page_of_recipe()
    made["tasks"] = _page_of_tasks()
    made["presets"] = _page_of_presets()
    return {f"{FOLDER}/{name}.md": text for name, text in made.items()}


def listed() -> str:
    """A table of the pages."""
    lines = ["| settings | |", "| --- | --- |"]
    for path, text in pages().items():
        title, _, rest = text.removeprefix("# ").partition("\n")
        first = rest.strip().partition(". ")[0].partition("\n")[0].rstrip(".")
        lines.append(f"| [{title}](settings/{path.rpartition('/')[2]}) | {first}. |")
    return "\n".join(lines)


def _page_of_run(hints: dict[str, Any]) -> str:
    rows = []
    for setting in settings_of(FinetuneConfig):
        if classes_of(hints[setting.name]):
            page = f"{setting.name.replace('_', '-')}.md"
            setting = dataclasses.replace(setting, type=f"[settings of its own]({page})", default="")
        rows.append(setting)
    return (
        "# A run\n\n"
        "What stands at the top of the YAML file of `groundup train` and `groundup finetune`, or is written"
        " `name=value` on their command lines; `stage` and `lora` are of `groundup finetune` alone."
        " `--print-config` shows each value and where it comes from.\n\n" + _table(rows)
    )


def _page_of_group(name: str, hint: Any) -> str:
    where = " (`groundup finetune` alone)" if name in _OF_FINETUNING else ""
    return (
        f"# {name}\n\n{_descriptions(FinetuneConfig)[name]} Written in YAML below `{name}:`,"
        f" or `{name}.NAME=value` on a command line{where}.\n\n" + "\n".join(_sections(name, hint, level=2))
    )


def _page_of_recipe() -> str:
    hints = hints_of(Recipe)
    parts = [
        "# A recipe of a corpus\n\nThe YAML file of `groundup corpus run`.\n",
        _table(settings_of(Recipe)),
        *_sections("stages", hints["stages"], level=2),
        "## bad_records\n",
        *_sections("bad_records", hints["bad_records"], level=2),
    ]
    return "\n".join(parts)


def _page_of_tasks() -> str:
    return (
        "# Evaluation tasks\n\nOptions of the tasks of `groundup eval`, written `TASK.OPTION=value`;"
        " in a run's settings, below `eval.options`.\n\n" + "\n".join(_sections("", Task, level=2))
    )


def _page_of_presets() -> str:
    parts = ["# Presets\n\nWhat `preset=NAME` gives a run; files and overrides win over it.\n"]
    parts += [f"## {name}\n\n```yaml\n{path.read_text().strip()}\n```\n" for name, path in presets().items()]
    return "\n".join(parts)


def _sections(path: str, hint: Any, level: int) -> Iterator[str]:
    """Yields a section for each class of a type, then those that are set inside it."""
    classes = classes_of(hint)
    for cls in classes:
        kind = getattr(cls, "kind", None)
        if kind is not None or level > 2:
            key = f"{path}.kind={kind}" if path and kind is not None else kind or path
            yield f"{'#' * min(level, 4)} {key}\n"
        summary = _summary(cls)
        if summary and (kind is not None or level > 2):
            yield f"{summary}\n"
        rows = settings_of(cls)
        yield _table(rows) if rows else "No settings.\n"
        hints = hints_of(cls)
        for setting in rows:
            if classes_of(hints[setting.name]):
                inner = f"{path}.{setting.name}" if path else f"{kind}.{setting.name}"
                yield from _sections(inner, hints[setting.name], level + 1)


def _table(settings: list[Setting]) -> str:
    lines = [
        '<div class="cards settings" markdown>\n',
        "| setting | value | default | |",
        "| --- | --- | --- | --- |",
    ]
    for one in settings:
        cells = (f"`{one.name}`", one.type, one.default, one.description.replace("``", "`"))
        lines.append(f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |")
    return "\n".join([*lines, "\n</div>\n"])


def _summary(cls: type) -> str:
    """The docstring of a class up to its list of attributes, as one paragraph."""
    return " ".join((inspect.getdoc(cls) or "").partition("Attributes:")[0].replace("``", "`").split())


def _descriptions(cls: type) -> dict[str, str]:
    """Setting -> what the docstrings of a class and its bases say of it."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        _, _, listed = inspect.cleandoc(one.__dict__.get("__doc__") or "").partition("Attributes:\n")
        for name, text in re.findall(r"^    (\w+): (.*(?:\n(?:      .*)?)*)", listed, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found


def _type(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        bounds = [text for mark in parts[1:] if (text := _bound(mark))]
        return " ".join([_type(parts[0]), *([", ".join(bounds)] if bounds else [])])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin in (typing.Union, types.UnionType):
        if all(dataclasses.is_dataclass(part) for part in parts):
            return "`kind`: " + ", ".join(f"`{part.kind}`" for part in parts)
        return " or ".join(_type(part) for part in parts)
    if origin is tuple:
        inner = [part for part in parts if part is not Ellipsis]
        return f"list of {_type(inner[0])}" if parts[-1] is Ellipsis else f"{len(inner)} of {_type(inner[0])}"
    if origin is dict:
        return f"{_type(parts[0])}: {_type(parts[1])}"
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return "settings below"
    return _PLAIN_TYPES.get(hint, "any")


def _bound(mark: Any) -> str:
    match mark:
        case annotated_types.Ge(ge=value):
            return f"≥ {value}"
        case annotated_types.Gt(gt=value):
            return f"> {value}"
        case annotated_types.Le(le=value) if value <= _LARGEST:
            return f"≤ {value}"
        case annotated_types.Lt(lt=value) if value < _LARGEST:
            return f"< {value}"
    return ""


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING:
        if field.default_factory is dataclasses.MISSING:
            return "**required**"
        value = field.default_factory()
    else:
        value = field.default
    if dataclasses.is_dataclass(value):
        kind = getattr(value, "kind", None)
        return f"`{kind}`" if kind is not None else ""
    match value:
        case None:
            return "null"
        case bool():
            return f"`{str(value).lower()}`"
        case "" | () | {}:
            return "none"
        case tuple():
            return ", ".join(f"`{one}`" for one in value)
        case _:
            return f"`{value}`"
