"""Scores of evaluation tasks while a run trains: what the loop is handed."""

import dataclasses
from typing import TYPE_CHECKING

from groundup.core.errors import DataError

if TYPE_CHECKING:
    from groundup.eval.tasks import EvaluationTask
    from groundup.train.config import TrainConfig
    from groundup.train.setup import Run
    from groundup.train.validation import Scores, ScoreTasks


def task_scorer(config: "TrainConfig") -> "ScoreTasks":
    """Returns what measures the tasks of ``config.eval`` on the model of a run, under its layout.

    Raises:
        ConfigError: There is no such task or option.
        DataError: A task finds no file.
    """
    tasks = _tasks(config) if config.eval.every else []

    def score_tasks(run: "Run") -> "Scores":
        from groundup.checkpoint.lazy import LoadedModel
        from groundup.eval.measure import measure
        from groundup.parallel.parallel_model import ParallelModel

        model = ParallelModel(run.state.model, run.mesh, run.state.pipeline, run.heartbeat.keep_alive)
        loaded = LoadedModel(
            config=run.config.model,
            model=model,
            tokenizer=run.tokenizer,
            source=run.config.run_dir,
            step=run.state.step,
            bos_ids=run.state.bos_ids,
            companions=run.state.companions,
        )
        assert config.eval.data is not None, "the config was checked"
        found = measure(loaded, tasks, [config.eval.data], run.precision)
        return {one.kind: dict(one.results.figures) for one in found}

    return score_tasks


def _tasks(config: "TrainConfig") -> "list[EvaluationTask]":
    from groundup.eval.tasks import PerplexityTask, configured_tasks

    assert config.eval.data is not None, "the config was checked"
    tasks = configured_tasks(config.eval.tasks.split(","), config.eval.options.split(), where="eval.tasks")
    for task in tasks:
        for path in task.find_files([config.eval.data]) if task.patterns else ():
            if not path.exists():
                raise DataError("there is no such file", where=f"eval.data: {path}", fix="Check the path.")
    return [
        dataclasses.replace(task, split=config.data.split)
        if isinstance(task, PerplexityTask) and task.split_name != "all" and not task.split
        else task
        for task in tasks
    ]
