"""Scores of a run: of tasks while it trained, and of ``groundup eval`` in its folder."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.native.folder import has_step_name, step_of
from groundup.core.errors import DataError
from groundup.core.files import read_json
from groundup.eval.score_history import FOLDER
from groundup.report.run_records import RunRecords

_MOST_FILES = 200
_LARGEST_RESULT = 100_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """A figure of a task.

    Attributes:
        task: Its kind.
        figure: Its name.
        value: As it was recorded.
        error: Standard error; None where there is none.
        step: Of the checkpoint; None where it is not known.
        file: Of the results, in the run folder; None for scores while training.
        tree: All that the file says of the task: ``options``, ``data``, ...; empty while training.
    """

    task: str
    figure: str
    value: Any
    error: Any = None
    step: int | None = None
    file: Path | None = None
    tree: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def run_scores(run: RunRecords) -> Iterator[Score]:
    """The last scores while training, and those of ``groundup eval`` in the run folder."""
    for kind, records in run.kinds.items():
        if kind.startswith("eval/"):
            last = records[-1]
            for name, value in last.items():
                if name not in ("kind", "step"):
                    yield Score(kind.removeprefix("eval/"), name, value, step=int(last["step"]))
    found = [*sorted((run.folder / FOLDER).glob("*.json")), *sorted(run.folder.glob("*.json"))]
    for path in [path for path in found if path.stat().st_size < _LARGEST_RESULT][:_MOST_FILES]:
        whole = _results(path)
        step = _step_of_results(path, whole)
        for tree in whole.get("tasks", []):
            if isinstance(tree, dict) and "task" in tree:
                errors = tree.get("standard_errors", {})
                for name, value in tree.get("figures", {}).items():
                    yield Score(tree["task"], name, value, errors.get(name), step, path, tree)


def _results(path: Path) -> dict[str, Any]:
    try:
        tree = read_json(path)
    except DataError:  # of others
        return {}
    return tree if isinstance(tree, dict) and tree.get("kind") == "evaluation" else {}


def _step_of_results(path: Path, tree: Mapping[str, Any]) -> int | None:
    digits = path.stem.removeprefix("step_").partition("_")[0]
    if path.parent.name == FOLDER and digits.isdecimal():
        return int(digits)
    model = Path(str(tree.get("model", "")))
    return step_of(model) if has_step_name(model) else None
