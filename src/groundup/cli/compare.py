"""``groundup compare``."""

import dataclasses
import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from groundup.cli.options import Switch
from groundup.core.errors import ConfigError, DataError, TrainingError

if TYPE_CHECKING:
    from groundup.verify.compare_run import Compared
    from groundup.verify.reference_band import Window
    from groundup.verify.references import Reference

_MOST_ROWS = 14
_MOST_SUSPECTS = 6


def compare(
    first: Path | None = None,
    second: str = "",
    *,
    list_references: Annotated[Switch, Parameter("--list")] = False,
    same_data: Switch = False,
    json: Switch = False,
) -> None:
    """Is a run right? Compares it with a reference run; or two models item by item.

    A run folder and a reference (`ref:tiny`): are the losses, as far as the run went, inside the band of a
    run that is known to be right? If not, since when, in what shape, and the usual suspects: the settings
    that differ, the most likely first, and what to check. The exit code is 1 outside the band.

    Two files that `groundup eval --out` wrote: does the second model differ from the first by more than
    chance? Prints the mean of each model's items (nats, where the figure is a perplexity), the difference
    with its standard error, and the p-value of a paired test: exact for right or wrong (McNemar), normal
    elsewhere.

    For example:

        groundup compare quickstart/run ref:tiny
        groundup compare --list
        groundup compare a.json b.json

    Args:
        first: A run folder, or what `groundup eval --out` wrote of one model.
        second: A reference, or what `groundup eval --out` wrote of another model.
        list_references: Show the references that there are.
        same_data: The data of the run are those of the published curve, where their path does not name them.
        json: Print the comparison with a reference as one JSON object.
    """
    from groundup.verify.references import PREFIX, read_reference, reference_names

    if list_references:
        for reference in map(read_reference, reference_names()):
            print(f"{PREFIX + reference.name:<16}{reference.about}\n{'':<16}{reference.reproduce}")
        return
    if first is None or not second:
        raise ConfigError(
            "takes two: a run and a reference, or the results of two models",
            where="compare",
            fix="For example: groundup compare quickstart/run ref:tiny",
        )
    if second.startswith(PREFIX):
        _compare_with_reference(first, read_reference(second), same_data=same_data, json=json)
    elif first.is_dir():
        raise ConfigError(
            f"{first} is a folder, which is compared with a reference",
            where="compare",
            fix=f"Type `groundup compare {first} ref:tiny`; two runs side by side are"
            f" `groundup report {first} {second} -o both.html`.",
        )
    else:
        _compare_results(first, Path(second))


def _compare_with_reference(folder: Path, reference: "Reference", *, same_data: bool, json: bool) -> None:
    from groundup.report.run_records import read_run
    from groundup.verify.compare_run import compare_run

    found = compare_run(read_run(folder, folder.name), reference, same_data=same_data)
    if json:
        tree = {"run": str(folder), "reference": reference.name, **dataclasses.asdict(found)}
        for window, one in zip(tree["windows"], found.windows, strict=True):
            window["is_inside"] = one.is_inside
        print(json_format.dumps(tree))
    else:
        _print_comparison(folder, reference, found)
    if not found.windows:
        raise DataError(f"nothing could be compared with ref:{reference.name}", where=folder)
    if not found.is_right:
        outside = found.outside
        since = f"outside the band since step {outside[0].last:,}" if outside else "inside the band so far"
        raise TrainingError(f"{since}, {found.shape}", where=folder)


def _print_comparison(folder: Path, reference: "Reference", found: "Compared") -> None:
    from groundup.verify.run_suspects import SHAPES

    print(f"{folder} against ref:{reference.name}: {reference.about}; losses in {found.unit}\n")
    if found.windows:
        print(f"{'steps':>15}{'run':>10}{'reference':>11}{'band':>10}")
    for window in _chosen(found.windows):
        steps = f"{window.last:,}" if window.first == window.last else f"{window.first + 1:,}-{window.last:,}"
        side = "above" if window.deviation > 0 else "below"
        verdict = f"inside ({window.deviation:+.1f})" if window.is_inside else f"OUTSIDE, {side}"
        kind = "" if window.kind == "training" else " validation"
        width = f"±{window.half_width:.3f}"
        print(f"{steps:>15}{window.loss:>10.4f}{window.expected:>11.4f}{width:>10}  {verdict}{kind}")
    for remark in (*found.remarks, *reference.notes):
        print(f"\n{remark}", end="")
    is_other = found.shape == "inside" and (found.apart or 0.0) > reference.rounding
    verdict = "but not the run that its seed makes" if is_other else SHAPES[found.shape]
    print(f"\n\n{found.shape}: {verdict}" if found.windows else "")
    if found.suspects:
        print("Settings that differ:" if found.shape == "inside" else "Suspects, the most likely first:")
    for number, suspect in enumerate(found.suspects[:_MOST_SUSPECTS], start=1):
        print(f"{number:>3}. {suspect.what}{'' if suspect.seen else ' (no setting tells)'}")
        print(f"     {suspect.check}")


def _chosen(windows: Sequence["Window"]) -> list["Window"]:
    """Some windows, among them of each kind the last, and the first outside."""
    outside = [window for window in windows if not window.is_inside][:1]
    last = {window.kind: window for window in windows}
    every = -(-len(windows) // _MOST_ROWS)
    return [
        window
        for place, window in enumerate(windows)
        if place % every == 0 or window in outside or window in last.values()
    ]


def _compare_results(first: Path, second: Path) -> None:
    from groundup.eval.results_file import compare_results

    rows = list(compare_results(first, second))  # so that nothing is printed of what cannot be compared
    print(f"{'task':<14}{'figure':<26}{'items':>7}{'first':>10}{'second':>10}{'difference':>20}{'p':>8}")
    for found in rows:
        change = f"{found.second - found.first:+.4f} ± {found.standard_error:.4f}"
        chance = f"{found.p_value:.3f}" if found.p_value >= 0.001 else "<0.001"
        print(
            f"{found.task:<14}{found.figure.replace('_', ' '):<26}{found.num_items:>7,}{found.first:>10.4f}"
            f"{found.second:>10.4f}{change:>20}{chance:>8}"
        )
