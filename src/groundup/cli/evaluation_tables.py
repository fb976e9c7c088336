"""How results of an evaluation are printed."""

import dataclasses
import json as json_format
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.cli.printing import print_excerpt

if TYPE_CHECKING:
    from groundup.eval.tasks import EvaluationTask, Results
    from groundup.eval.training_overlap import TaskOverlap


def print_overlap(overlap: "TaskOverlap | str", results: "Results") -> None:
    """Prints how many items overlap the training data, and the figures without them."""
    if isinstance(overlap, str):
        if overlap:
            print(f"  overlap with the training data is not known: {overlap}")
        return
    cut = f"; {overlap.cut:,} did, and were cut out of it" if overlap.cut else ""
    print(
        f"  {len(overlap.places):,} of {overlap.items:,} items overlap the training data by"
        f" {overlap.max_ngram} words{cut}"
    )
    if overlap.clean:
        print(f"    {'':<22}{'all':>14} {'without':>14} {'change':>8} {'overlapping':>14}")
    for name, clean in overlap.clean.items():
        whole = results.figures[name]
        change = f"{(clean - whole) / whole:+.1%}" if whole else ""
        print(
            f"    {name.replace('_', ' '):<22}{whole:>14,.4f} {clean:>14,.4f} {change:>8}"
            f" {overlap.overlapping[name]:>14,.4f}"
        )


def print_table(task: "EvaluationTask", results: "Results", seconds: float) -> None:
    """Prints the figures of a task beside published ones."""
    from groundup.eval.results_file import published

    others = published(task)
    sources: list[str] = []
    for name, value in results.figures.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
        error = f"± {results.standard_errors[name]:,.4f}" if name in results.standard_errors else ""
        about = task.figures[name].describe()
        print(f"  {name.replace('_', ' '):<24}{shown:>14}{error and ' '}{error:<10}  {about}".rstrip())
        for row in others.get(name, ()):
            if row["source"] not in sources:
                sources.append(row["source"])
            number = sources.index(row["source"]) + 1
            print(f"    {row['model']:<22}{row['value']:>14,.4f}  published [{number}]")
    for number, source in enumerate(sources, start=1):
        print(f"  [{number}] {source}")
    if results.num_truncated:
        print(f"  too long for the model, their beginnings were cut off: {results.num_truncated:,} items")
    if results.skipped:
        where, why = next(iter(results.skipped.items()))
        print(f"  left out, as the model cannot score them: {len(results.skipped):,} items; {where}: {why}")
    rate = f", {len(results.items) / seconds:,.1f} items/s" if results.items else ""
    print(f"  {seconds:,.1f} s{rate}")


def print_average(trees: Sequence[Mapping[str, Any]], model: Path, *, json: bool) -> None:
    """Prints the centred average of the tasks, where all of its parts were measured."""
    from groundup.eval.centred_average import centred_average

    if average := centred_average(trees):
        about = {"task": "centred_average", "model": str(model), **dataclasses.asdict(average)}
        print(json_format.dumps(about) if json else average.describe())


def print_items(results: "Results", count: int) -> None:
    """Prints the first items with predictions and targets."""
    for item in results.items[:count]:
        verdict = "right" if item.values["accuracy"] else "wrong"
        predicted, target = item.prediction.strip(), item.target.strip()
        print(f"  {item.where}: {verdict}; predicted {predicted!r}, the target is {target!r}")
        print_excerpt(item.prompt[-240:], 240)
