"""The curves of runs: figures for the script that draws them, and a table of each for everybody else."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from groundup.core.progress import human_seconds
from groundup.report.page import details, table, text
from groundup.report.run_records import Record, RunRecords, number, thinned

_MOST_ROWS = 40
_MOST_FIGURES = 24
_NO_CURVES = {
    *("kind", "step", "loss", "grad_norm", "lr", "adamw_lr", "tokens_per_second", "flops_per_second", "mfu"),
    *("loss_scale", "skipped_steps", "outliers", "batch_size", "samples", "memory_bytes", "epoch", "tokens"),
    "eta_seconds",
}
_CROSS_ENTROPY = {"pretrain", "sft"}
"""Stages whose loss is that of the next token."""
_HELD_OUT = ("validation", "validation_ema")
_NO_FIGURES = {"kind", "step", "loss", "perplexity", "bits_per_byte", "num_tokens"}


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """A figure over a run.

    Attributes:
        run: The number of the run.
        name: What the curve is called.
        records: From which it is read.
        values: Of each record; None for a value that is not finite.
        dotted: Whether each value is a measurement of its own, to be seen as one.
    """

    run: int
    name: str
    records: Sequence[Record]
    values: Sequence[float | None]
    dotted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Plot:
    """Curves with one height; none of them is empty."""

    title: str
    curves: Sequence[Curve]
    marked: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run at a step, of a kind: "restart", "skip", "rollback" or "overflow"."""

    run: int
    step: int
    kind: str
    what: str


def loss_plot(runs: Sequence[RunRecords], *, per_byte: bool) -> Plot:
    """Training and validation losses; ``per_byte`` for runs of different vocabularies, validated all."""
    curves = []
    for place, run in enumerate(runs):
        factor = (run.bits_per_nat or 1.0) if per_byte else 1.0
        curves.append(_curve(place, "training", run.train, "loss", factor))
        for kind in _HELD_OUT:
            found = run.kinds.get(kind, ())
            curves.append(
                _curve(place, kind.replace("_ema", " (weight average)"), found, "loss", factor, dotted=True)
            )
    stages = {run.config.get("stage.kind", "pretrain") for run in runs}
    nats = "Loss in nats" if stages <= _CROSS_ENTROPY else "Loss"
    return Plot("Loss in bits per byte" if per_byte else nats, _filled(curves, runs), marked=True)


def figure_plots(runs: Sequence[RunRecords]) -> Iterator[Plot]:
    """What the objective of a fine-tuning measures, as rewards and margins, in training and held out."""
    names: dict[str, None] = {}
    for run in runs:
        for record in run.train[-1:]:
            names |= {name: None for name in record if name not in _NO_CURVES}
        for record in run.kinds.get("validation", ())[-1:]:
            names |= {name: None for name in record if name not in _NO_FIGURES}
    for name in list(names)[:_MOST_FIGURES]:
        curves = [
            _curve(
                place,
                kind,
                run.kinds.get(kind if kind != "training" else "train", ()),
                name,
                dotted=kind != "training",
            )
            for place, run in enumerate(runs)
            for kind in ("training", "validation")
        ]
        if filled := _filled(curves, runs):
            yield Plot(name.upper() if name == "kl" else name.replace("_", " ").capitalize(), filled)


def machine_plots(runs: Sequence[RunRecords]) -> Iterator[Plot]:
    """Learning rate, gradient norm, throughput, memory; what never changes or is not known is left out."""
    wanted = [
        ("Gradient norm", "grad_norm", 1.0, True),
        ("Learning rate", "lr", 1.0, False),
        ("Tokens a second", "tokens_per_second", 1.0, True),
        ("MFU in %", "mfu", 100.0, False),
        ("Memory in GB", "memory_bytes", 1e-9, False),
        ("Samples a step", "batch_size", 1.0, False),
        ("Loss scale", "loss_scale", 1.0, False),
    ]
    for title, name, factor, marked in wanted:
        curves = [_curve(place, "", run.train, name, factor) for place, run in enumerate(runs)]
        filled = _filled(curves, runs)
        values = {value for curve in filled for value in curve.values}
        if filled and not (name in ("mfu", "batch_size", "loss_scale") and len(values) == 1):
            yield Plot(title, filled, marked=marked)


def score_plots(runs: Sequence[RunRecords]) -> Iterator[Plot]:
    """The scores of tasks that were measured more than once while training."""
    found = {
        (kind, name): None
        for run in runs
        for kind, records in run.kinds.items()
        if kind.startswith("eval/") and len(records) > 1
        for name in records[-1]
        if name not in ("kind", "step")
    }
    for kind, name in list(found)[:_MOST_FIGURES]:
        curves = [
            _curve(place, "", run.kinds.get(kind, ()), name, dotted=True) for place, run in enumerate(runs)
        ]
        if filled := _filled(curves, runs):
            yield Plot(f"{kind.removeprefix('eval/')} {name.replace('_', ' ')}", filled)


def events_of(place: int, run: RunRecords) -> Iterator[Event]:
    """Restarts, outliers that were skipped or rolled back, and steps without an update."""
    for number_of, start in enumerate(run.starts):
        if number_of:
            yield Event(place, int(start["step"]), "restart", f"gone on with from step {start['step']:,}")
    for record in run.kinds.get("outlier", ()):
        action = "rollback" if record.get("action") == "rollback" else "skip"
        said = f"{record.get('reason', 'outlier')}: loss {short(record.get('loss'))}"
        step = number(record.get("outlier_step")) or record["step"]
        yield Event(place, int(step), action, f"{said}, gradient norm {short(record.get('grad_norm'))}")
    before = 0
    for record in run.train:
        skipped = int(number(record.get("skipped_steps")) or 0)
        if skipped > before:
            yield Event(place, int(record["step"]), "overflow", f"{skipped - before} steps without an update")
        before = skipped


def plot_data(plots: Sequence[Plot], runs: Sequence[RunRecords], events: Sequence[Event]) -> dict[str, Any]:
    """What the script draws, as JSON has it."""
    marks = [{"run": one.run, "kind": one.kind, **_place(runs[one.run], one.step)} for one in events]
    return {
        "runs": [run.name for run in runs],
        "marks": marks,
        "plots": [
            {
                "title": plot.title,
                "marked": plot.marked,
                "curves": [_curve_data(curve, runs) for curve in plot.curves],
            }
            for plot in plots
        ],
    }


def plot_html(plot: Plot, at: int, runs: Sequence[RunRecords]) -> str:
    """The place of a plot, and its table.

    Args:
        plot: With its curves.
        at: Its number on the page.
        runs: Of the page.
    """
    label = f"{text(plot.title)}: arrow keys read values; the table below has them too"
    return (
        f'<figure class="plot" data-plot="{at}"><h3>{text(plot.title)}</h3><ul class="key"></ul>'
        f'<div class="canvas" role="img" tabindex="0" aria-label="{label}"></div>'
        f'<output aria-live="polite"></output>{details("Show as a table", _table(plot, runs))}</figure>'
    )


def controls() -> str:
    """What the axis means: for all plots at once."""
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{value}"{" checked" if value == "step" else ""}>'
        f"{name}</label>"
        for value, name in (("step", "steps"), ("tokens", "tokens"), ("hours", "hours"))
    )
    log = '<label><input type="checkbox" id="logarithmic"> logarithmic heights</label>'
    return f'<form class="controls"><fieldset><legend>Axis</legend>{choices}</fieldset>{log}</form>'


def _table(plot: Plot, runs: Sequence[RunRecords]) -> str:
    steps: set[int] = set()
    for curve in plot.curves:
        own = [int(record["step"]) for record in curve.records]
        most = max(2, _MOST_ROWS // len(plot.curves))
        steps |= {own[round(place * (len(own) - 1) / max(1, most - 1))] for place in range(most)}
    found = [
        dict(zip((int(one["step"]) for one in curve.records), curve.values, strict=True))
        for curve in plot.curves
    ]
    several = len(runs) > 1
    head = ["step", *([] if several else ["tokens", "time"]), *(_name(curve, runs) for curve in plot.curves)]
    rows = []
    for step in sorted(steps):
        place = runs[plot.curves[0].run].place(step)
        own_place = [] if several else [f"{place.tokens:,.0f}", human_seconds(3600 * place.hours)]
        rows.append([f"{step:,}", *own_place, *(short(values.get(step)) for values in found)])
    return table(plot.title, head, rows)


def _name(curve: Curve, runs: Sequence[RunRecords]) -> str:
    own = runs[curve.run].name if len(runs) > 1 else ""
    return ", ".join(filter(None, (own, curve.name))) or "value"


def _curve(
    run: int, name: str, records: Sequence[Record], field: str, factor: float = 1.0, *, dotted: bool = False
) -> Curve:
    own = thinned([record for record in records if field in record])
    values = [number(record[field]) for record in own]
    scaled = [value * factor if value is not None and math.isfinite(value) else None for value in values]
    return Curve(run, name, own, scaled, dotted)


def _filled(curves: Sequence[Curve], runs: Sequence[RunRecords]) -> list[Curve]:
    return [curve for curve in curves if any(value is not None for value in curve.values)]


def _curve_data(curve: Curve, runs: Sequence[RunRecords]) -> dict[str, Any]:
    places = [_place(runs[curve.run], int(record["step"])) for record in curve.records]
    return {
        "run": curve.run,
        "name": _name(curve, runs),
        "dotted": curve.dotted,
        **{axis: [place[axis] for place in places] for axis in ("step", "tokens", "hours")},
        "y": [None if value is None else float(f"{value:.6g}") for value in curve.values],
    }


def _place(run: RunRecords, step: int) -> dict[str, float]:
    place = run.place(step)
    return {"step": step, "tokens": round(place.tokens), "hours": round(place.hours, 6)}


def short(value: Any) -> str:
    """A figure in four digits; a text as it is; nothing of None."""
    if (found := number(value)) is None:
        return "" if value is None else text(value)
    return f"{found:,.4g}" if abs(found) < 10_000 else f"{found:,.0f}"
