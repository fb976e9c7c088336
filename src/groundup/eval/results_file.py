"""Results as files, and whether two models differ on the same items."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

import yaml

from groundup import __version__
from groundup.core.config import to_dict
from groundup.core.errors import DataError
from groundup.core.files import read_json, write_json
from groundup.eval.centred_average import centred_average
from groundup.eval.tasks.evaluation_task import EvaluationTask, Item, Results

_NO_PROTOCOL = ("batch_size", "limit", "text_key", "fewshot_data", "max_tokens")
"""Options that change which items are measured, or how fast, but not how."""


def published(task: EvaluationTask) -> dict[str, list[dict[str, Any]]]:
    """Returns what was published for a task with these options: figure -> model, value and source of each.

    Options that a row does not name must be the task's defaults, but for those that change no protocol.
    """
    text = resources.files("groundup.eval").joinpath("published.yaml").read_text()
    options = to_dict(task)
    usual = {name: value for name, value in to_dict(type(task)()).items() if name not in _NO_PROTOCOL}
    return {
        figure: [row for row in rows if {**usual, **row.get("options", {})}.items() <= options.items()]
        for figure, rows in yaml.safe_load(text).get(options["kind"], {}).items()
    }


def results_tree(task: EvaluationTask, results: Results, *, data: Sequence[Path], seconds: float) -> Any:
    """Returns all that a task found, with every item's log-likelihoods, as plain values."""
    options = to_dict(task)
    return {
        "task": options.pop("kind"),
        "options": options,
        "data": [str(path) for path in data],
        "figures": dict(results.figures),
        "standard_errors": dict(results.standard_errors),
        "num_truncated": results.num_truncated,
        "skipped": dict(results.skipped),
        "seconds": seconds,
        "items": [_item_tree(item) for item in results.items],
    }


def _item_tree(item: Item) -> dict[str, Any]:
    return {
        "where": item.where,
        "prediction": item.prediction,
        "target": item.target,
        "values": dict(item.values),
        "scores": [
            {name: getattr(score, name) for name in ("logprob", "is_greedy", "num_tokens", "num_bytes")}
            for score in item.scores
        ],
    }


def write_results(path: Path, model: str, trees: Sequence[Any]) -> None:
    """Writes the results of a model's tasks, and their centred average where all of its parts are there."""
    tree: dict[str, Any] = {"kind": "evaluation", "groundup_version": __version__, "model": model}
    tree["tasks"] = trees
    if average := centred_average(trees):
        tree["centred_average"] = dataclasses.asdict(average)
    write_json(path, tree)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Holds how two models differ by one figure.

    Attributes:
        task: Its kind.
        figure: Its name; of a perplexity, items are compared by their nats.
        num_items: Items that both have.
        first: Mean of the first model's values.
        second: Mean of the second's.
        standard_error: Of the mean difference.
        p_value: How probable so large a difference is between equal models, two-sided: exact (McNemar's test)
            where items are right or wrong, and by the normal distribution elsewhere.
    """

    task: str
    figure: str
    num_items: int
    first: float
    second: float
    standard_error: float
    p_value: float


def compare_results(first: Path, second: Path) -> Iterator[Comparison]:
    """Compares the figures of all tasks that two files of results share, item by item.

    Items that one of the models could not score are left out.

    Raises:
        DataError: A file holds no results, or they share no task with items, or its items differ.
    """
    ours, theirs = _read(first), _read(second)
    shared = [kind for kind in ours if kind in theirs and ours[kind]["items"] and theirs[kind]["items"]]
    if not shared:
        raise DataError(
            f"these have no task with items in common ({', '.join(ours)}; {', '.join(theirs)})",
            where=f"{first}, {second}",
            fix="Measure both models on the same tasks.",
        )
    for kind in shared:
        pair = _comparable(ours[kind], theirs[kind], f"{first}, {second}")
        for figure in next(iter(pair[0].values()))["values"]:
            values = [[some[place]["values"][figure] for place in pair[0]] for some in pair]
            yield _compare(kind, figure, *values)


def _comparable(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Returns the items of both by their places, without those that one model could not score.

    Raises:
        DataError: They are not the same, or were asked otherwise.
    """
    options = [{k: v for k, v in tree["options"].items() if k not in _NO_PROTOCOL} for tree in (ours, theirs)]
    if differing := [name for name in options[0] if options[0][name] != options[1].get(name)]:
        shown = ", ".join(f"{name}={some[name]}" for name in differing for some in options if name in some)
        raise DataError(
            f"{ours['task']} was measured otherwise ({shown})",
            where=where,
            fix="Measure both with the same options.",
        )
    skipped = {_place(item) for tree in (ours, theirs) for item in tree.get("skipped", {})}
    items = [
        {_place(item["where"]): item for item in tree["items"] if _place(item["where"]) not in skipped}
        for tree in (ours, theirs)
    ]
    targets = [{place: item["target"] for place, item in some.items()} for some in items]
    if not targets[0] or targets[0] != targets[1]:
        raise DataError(
            f"the items of {ours['task']} are not the same", where=where, fix="Measure both on one file."
        )
    return items


def _place(where: str) -> str:
    """Returns file and line without the folder, in which others may have the file elsewhere."""
    return PurePath(where).name


def _compare(task: str, figure: str, first: Sequence[float], second: Sequence[float]) -> Comparison:
    count = len(first)
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean = sum(differences) / count
    variance = sum((value - mean) ** 2 for value in differences) / max(1, count - 1)
    error = math.sqrt(variance / count)
    if {*first, *second} <= {0.0, 1.0}:
        better, worse = differences.count(1.0), differences.count(-1.0)
        p_value = _sign_test(better, worse)
    else:
        p_value = math.erfc(abs(mean) / error / math.sqrt(2)) if error else float(mean == 0)
    return Comparison(
        task=task,
        figure=figure,
        num_items=count,
        first=sum(first) / count,
        second=sum(second) / count,
        standard_error=error,
        p_value=p_value,
    )


def _sign_test(better: int, worse: int) -> float:
    """Returns how probable it is that a fair coin falls at least so unevenly."""
    total = better + worse
    tail = sum(math.comb(total, k) for k in range(min(better, worse) + 1))
    share: float = 2 * tail / 2**total  # integers of any size
    return min(1.0, share)


def _read(path: Path) -> Mapping[str, Any]:
    tree = read_json(path)
    if not isinstance(tree, dict) or tree.get("kind") != "evaluation":
        raise DataError("holds no results of groundup eval", where=path, fix="Name a file of eval --out.")
    return {task["task"]: task for task in tree["tasks"]}
