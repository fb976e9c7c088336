"""Measures a model by tasks one after the other: for the command line, a run's checkpoints, in training."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.config import to_dict
from groundup.eval.results_file import results_tree
from groundup.eval.tasks.evaluation_task import EvaluationTask, Results
from groundup.parallel.device import Precision


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Holds what a task found.

    Attributes:
        task: With its options.
        data: Its files and folders.
        results: What it found.
        seconds: That it took.
    """

    task: EvaluationTask
    data: Sequence[Path]
    results: Results
    seconds: float

    @property
    def kind(self) -> str:
        """Returns the kind of the task."""
        return kind_of(self.task)

    @property
    def tree(self) -> Mapping[str, Any]:
        """Returns everything as plain values, as ``eval --out`` writes it."""
        tree: Mapping[str, Any] = results_tree(self.task, self.results, data=self.data, seconds=self.seconds)
        return tree

    def in_one_line(self, model: Path, **about: object) -> dict[str, Any]:
        """Returns what ``eval --json`` prints: options and figures, and not the items."""
        options = to_dict(self.task)
        return {
            "task": options.pop("kind"),
            "model": str(model),
            "data": [str(path) for path in self.data],
            **about,
            **options,
            **self.results.figures,
            "standard_errors": dict(self.results.standard_errors),
            "num_truncated": self.results.num_truncated,
            "num_skipped": len(self.results.skipped),
        }


def measure(
    loaded: LoadedModel, tasks: Sequence[EvaluationTask], files: Sequence[Path], precision: Precision
) -> Iterator[Measured]:
    """Measures the tasks in order; of several, each takes the files that are its own by their names.

    Raises:
        DataError: The data is not what a task reads.
        CheckpointError: The model computes losses that are not finite.
    """
    for task in tasks:
        yield measure_task(loaded, task, files_of(task, files, among=tasks), precision)


def measure_task(
    loaded: LoadedModel, task: EvaluationTask, data: Sequence[Path], precision: Precision
) -> Measured:
    """Measures one task on files of its own, as ``measure``."""
    task = task.for_model(loaded)
    began = time.monotonic()
    with precision.autocast():
        results = task.measure(loaded, data)
    return Measured(task=task, data=data, results=results, seconds=time.monotonic() - began)


def files_of(task: EvaluationTask, files: Sequence[Path], *, among: Sequence[EvaluationTask]) -> list[Path]:
    """Returns the files that are the task's by their names, and folders with such, where there are some.

    All files where there are none, and where it is the only task.
    """
    if len(among) == 1:
        return list(files)
    named = [
        path
        for path in files
        if any(path.match(glob) or next(path.rglob(glob), None) for glob in task.patterns)
    ]
    return named or list(files)


def kind_of(task: EvaluationTask) -> str:
    """Returns the kind of a task."""
    kind: str = to_dict(task)["kind"]
    return kind
