"""Plots as HTML and SVG without a script; the figures of each are in its text, or in a table behind it."""

import dataclasses
import itertools
from collections.abc import Sequence

from groundup.core.progress import human_count
from groundup.report.page import details, table, text

_COLOURS = ("one", "two", "three")
_MOST_LABELS = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """A bar of one or more parts.

    Attributes:
        name: As HTML.
        parts: Their sizes, in the order of the key.
        value: What stands at its end, as HTML.
        more: HTML below it.
    """

    name: str
    parts: Sequence[float]
    value: str
    more: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """Figures that belong together, with their name and a colour of ``page.css``."""

    name: str
    values: Sequence[int]
    colour: str


def key(names: Sequence[tuple[str, str]]) -> str:
    """Which colour is what: names and colours."""
    items = "".join(f"<li class={colour}>{text(name)}</li>" for name, colour in names)
    return f'<ul class="key">{items}</ul>'


def bars(rows: Sequence[Bar], *, total: float = 0.0, names: Sequence[str] = ()) -> str:
    """Horizontal bars.

    Args:
        rows: One below the other.
        total: What a bar of the whole width means; 0 for the longest of them.
        names: Of the parts, for a key.
    """
    whole = total or max((sum(row.parts) for row in rows), default=0.0) or 1.0
    items = []
    for row in rows:
        parts = "".join(
            f'<i class="{colour}" style="width:{100 * size / whole:.3f}%"></i>'
            for colour, size in zip(_COLOURS, row.parts, strict=False)
            if size > 0
        )
        items.append(
            f'<li><span class="name">{row.name}</span><span class="bar" aria-hidden="true">{parts}</span>'
            f'<span class="value">{row.value}</span>{row.more}</li>'
        )
    legend = key(list(zip(names, _COLOURS, strict=False))) if names else ""
    return f'{legend}<ol class="bars">{"".join(items)}</ol>'


def histogram(
    caption: str, bounds: Sequence[int], series: Sequence[Series], *, unit: str, label_step: int = 1
) -> str:
    """Columns over an axis of ranges, a series beside the other, and a table of their figures.

    Args:
        caption: What is shown.
        bounds: Where the ranges begin, and where the last one ends.
        series: Each with a figure for each range.
        unit: Of the figures.
        label_step: Bounds are labelled by multiples of so many, as many as there is room for.
    """
    ranges = list(itertools.pairwise(bounds))
    number = len(ranges)
    highest = max((max(each.values, default=0) for each in series), default=0) or 1
    width = 0.84 / len(series)
    columns = [
        f'<rect class="{each.colour}" x="{place + 0.08 + width * at:.3f}" width="{width:.3f}" '
        f'y="{100 - 100 * value / highest:.3f}" height="{100 * value / highest:.3f}">'
        f"<title>{low:,} to {high:,}: {value:,} {text(unit)} ({text(each.name)})</title></rect>"
        for at, each in enumerate(series)
        for place, (value, (low, high)) in enumerate(
            zip(each.values, itertools.pairwise(bounds), strict=True)
        )
        if value
    ]
    step = -(-number // (_MOST_LABELS * label_step)) * label_step
    labels = "".join(
        f'<li style="left:{100 * place / number:.2f}%">{human_count(bounds[place])}</li>'
        for place in range(0, number + 1, step)
    )
    rows = [
        [f"{low:,} to {high:,}", *(f"{each.values[place]:,}" for each in series)]
        for place, (low, high) in enumerate(ranges)
    ]
    plot = (
        f'<svg viewBox="0 0 {number} 100" preserveAspectRatio="none" role="img" aria-label="{text(caption)}; '
        f'the figures are in the table below">{"".join(columns)}</svg>'
    )
    figures = table(caption, ("range", *(each.name for each in series)), rows)
    return (
        f"{key([(each.name, each.colour) for each in series])}"
        f'<figure>{plot}<ul class="axis" aria-hidden="true">{labels}</ul></figure>'
        f"{details('Show as a table', figures)}"
    )
