"""The scores of a run's checkpoints, in files beside them: what is measured already, and all by step."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from groundup.checkpoint.native.folder import CHECKPOINTS, MARKER, list_checkpoints, step_of
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError, DataError
from groundup.core.files import read_json
from groundup.eval.measure import Measured
from groundup.eval.results_file import write_results
from groundup.eval.tasks.evaluation_task import EvaluationTask

FOLDER = "evaluations"

Trees = list[dict[str, Any]]
"""What ``results_tree`` makes of tasks, each with "asked": what was measured, on what and how."""


class ScoreHistory:
    """The scores of a run's checkpoints, of one kind of weights and number format.

    Args:
        run_dir: The run folder.
        ema: Of the average of the weights.
        precision: Format of the matrix products.
    """

    def __init__(self, run_dir: Path, *, ema: bool, precision: str) -> None:
        self.folder = run_dir / FOLDER
        self._run_dir = run_dir
        self._suffix = "_ema" if ema else ""
        self._precision = precision

    def checkpoints(self) -> list[Path]:
        """Returns the complete checkpoints of the run, the oldest first.

        Raises:
            CheckpointError: There is none.
        """
        found = list_checkpoints(self._run_dir / CHECKPOINTS)
        complete = [folder for folder in found if (folder / MARKER).is_file()]
        if not complete:
            raise CheckpointError(
                "holds no checkpoint of a run", where=self._run_dir, fix="Name a run folder of groundup."
            )
        return complete

    def has(self, checkpoint: Path, task: EvaluationTask, data: Sequence[Path]) -> bool:
        """Whether a task with these options is measured on this checkpoint and these data."""
        asked = self._asked(checkpoint, task, data)
        return any(tree.get("asked") == asked for tree in self._read(step_of(checkpoint)))

    def add(self, checkpoint: Path, task: EvaluationTask, found: Measured) -> None:
        """Keeps what a task found of a checkpoint, in place of what the same task found before."""
        step = step_of(checkpoint)
        others = [tree for tree in self._read(step) if tree["task"] != found.kind]
        tree = {**found.tree, "asked": self._asked(checkpoint, task, found.data)}
        self.folder.mkdir(exist_ok=True)
        write_results(self._file(step), str(checkpoint), [*others, tree])

    def read(self, asked: Iterable[tuple[EvaluationTask, Sequence[Path]]]) -> dict[int, Trees]:
        """Returns the results of each step, in order.

        Args:
            asked: Tasks with their data: what one of them found with other options or data is left out.
        """
        wanted = [self._as_asked(*pair) for pair in asked]
        name = f"step_*{self._suffix}.json"
        found = [
            path.stem.removeprefix("step_").removesuffix(self._suffix) for path in self.folder.glob(name)
        ]
        return {
            step: [tree for tree in self._read(step) if _is_comparable(tree, wanted)]
            for step in sorted(int(text) for text in found if text.isdecimal())
        }

    def _file(self, step: int) -> Path:
        return self.folder / f"step_{step:07d}{self._suffix}.json"

    def _read(self, step: int) -> Trees:
        path = self._file(step)
        if not path.is_file():
            return []
        tree = read_json(path)
        if not isinstance(tree, dict) or tree.get("kind") != "evaluation":
            raise DataError("holds no results of groundup eval", where=path, fix="Move it away.")
        trees: Trees = tree["tasks"]
        return trees

    def _asked(self, checkpoint: Path, task: EvaluationTask, data: Sequence[Path]) -> dict[str, Any]:
        return {"checkpoint": (checkpoint / MARKER).read_text().strip(), **self._as_asked(task, data)}

    def _as_asked(self, task: EvaluationTask, data: Sequence[Path]) -> dict[str, Any]:
        return {
            "task": to_dict(task),
            "data": [str(path.absolute()) for path in data],
            "precision": self._precision,
        }


def _is_comparable(tree: Mapping[str, Any], wanted: Sequence[Mapping[str, Any]]) -> bool:
    same_kind = [one for one in wanted if one["task"]["kind"] == tree["task"]]
    return not same_kind or any(one.items() <= tree["asked"].items() for one in same_kind)


def series_of(history: Mapping[int, Trees]) -> dict[tuple[str, str], dict[int, tuple[float, float]]]:
    """Returns the values of each task and figure by step, with their standard errors, 0 where not known."""
    found: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for step, trees in history.items():
        for tree in trees:
            for name, value in tree["figures"].items():
                error = tree["standard_errors"].get(name, 0.0)
                found.setdefault((tree["task"], name), {})[step] = value, error
    return found
