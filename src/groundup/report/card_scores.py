"""The part of a model card that says how a model was measured, in words and in the hub's ``model-index``."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from groundup.eval.tasks import TASKS
from groundup.report.card_stages import CardStage
from groundup.report.card_text import place, table
from groundup.report.run_records import number
from groundup.report.run_scores import Score, run_scores

_HELD_OUT = "Losses on held-out data, where they were measured, stand under Training."


def evaluation(stages: Sequence[CardStage]) -> str:
    """The scores of the checkpoint, with the options they were measured with."""
    scores = [score for stage in stages for score in run_scores(stage.run)]
    own = list(_of_checkpoint(stages))
    if not own:
        others = f" ({len(scores):,} scores of other checkpoints are recorded.)" if scores else ""
        return f"No evaluation of this checkpoint by tasks is recorded.{others} {_HELD_OUT}\n\n"
    groups: dict[str, list[Score]] = {}
    for score in own:
        groups.setdefault(_protocol(score), []).append(score)
    return f"{_HELD_OUT}\n\n" + "".join(
        table((scores[0].task, "value", "± s.e."), [_row(score) for score in scores]) + f"{how}\n\n"
        for how, scores in groups.items()
    )


def _row(score: Score) -> list[str]:
    figure = TASKS[score.task].figures.get(score.figure) if score.task in TASKS else None
    unit = f" ({figure.unit})" if figure and figure.unit else ""
    value, error = number(score.value), number(score.error)
    shown = (
        f"{score.value:,}" if isinstance(score.value, int) else f"{value:.4g}" if value is not None else "?"
    )
    return [f"{score.figure.replace('_', ' ')}{unit}", shown, "" if error is None else f"{error:.2g}"]


def model_index(stages: Sequence[CardStage], name: str) -> list[dict[str, Any]]:
    """The scores as the hub reads them; empty where there is none."""
    tasks: dict[tuple[str, str], dict[str, Any]] = {}
    for score in _of_checkpoint(stages):
        value, figure = (
            number(score.value),
            TASKS[score.task].figures.get(score.figure) if score.task in TASKS else None,
        )
        if value is None or not math.isfinite(value) or figure is None or not figure.better:
            continue
        data = ", ".join(_data(score)) or score.task
        result = tasks.setdefault(
            (score.task, data),
            {
                "task": {"type": "text-generation", "name": "Text generation"},
                "dataset": {"type": data if score.task == "perplexity" else score.task, "name": data},
                "metrics": [],
            },
        )
        metric: dict[str, Any] = {
            "type": score.figure,
            "value": value,
            "name": score.figure.replace("_", " "),
        }
        if options := _options(score):
            metric["args"] = options
        result["metrics"].append(metric)
    return [{"name": name, "results": list(tasks.values())}] if tasks else []


def _of_checkpoint(stages: Sequence[CardStage]) -> Iterator[Score]:
    """The scores of the checkpoint, without those while training that a later file has too."""
    for stage in stages:
        found = [score for score in run_scores(stage.run) if score.step == stage.step]
        in_files = {(score.task, score.figure) for score in found if score.file}
        yield from (one for one in found if one.file or (one.task, one.figure) not in in_files)


def _protocol(score: Score) -> str:
    """How a task was measured, in a sentence that is the same for all of its figures."""
    if not score.file:
        return f"The task {score.task}, measured while training, at step {score.step:,}."
    given = ", ".join(f"{name}={value}" for name, value in _options(score).items())
    said = [f"`groundup eval --tasks {score.task}` on {', '.join(f'`{name}`' for name in _data(score))}"]
    said += [f"with {given}"] if given else []
    for key in ("skipped", "num_truncated"):
        found = score.tree.get(key)
        amount = len(found) if isinstance(found, dict) else found
        said += [f"{amount:,} items {key.removeprefix('num_')}"] if amount else []
    return f"{', '.join(said)}."


def _options(score: Score) -> dict[str, Any]:
    options = score.tree.get("options")
    given = options.items() if isinstance(options, dict) else ()
    return {
        name: place(value) if name.endswith("data") and isinstance(value, str) else value
        for name, value in given
        if name != "batch_size" and value not in (None, "")
    }


def _data(score: Score) -> list[str]:
    data = score.tree.get("data")
    return [place(path).rpartition("/")[2] for path in data] if isinstance(data, list) else []
