"""Scores over the checkpoints of a run as a page with drawings (SVG), which needs nothing but a browser."""

import html
from collections.abc import Mapping
from pathlib import Path

from groundup.core.files import atomic_write
from groundup.eval.tasks import TASKS

_WIDTH, _HEIGHT = 420, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 12, 30, 34
_STYLE = (
    "body{font:14px sans-serif;margin:2em;color:#222;background:#fff}svg{margin:0 1em 1em 0}"
    "text{font:11px sans-serif;fill:#444}.title{font-weight:bold;fill:#222}.axis{stroke:#999}"
    ".line{fill:none;stroke:#1f6fb2;stroke-width:2}.dot{fill:#1f6fb2}.error{fill:#1f6fb2;opacity:.18}"
)

Series = Mapping[int, tuple[float, float]]
"""Step -> value and standard error."""


def write_plot(path: Path, title: str, series: Mapping[tuple[str, str], Series]) -> None:
    """Writes a page with a drawing of each figure that tells which of two models is better.

    Args:
        path: The HTML file.
        title: Of the page.
        series: (task, figure) -> values by step.
    """
    panels = []
    for (kind, name), values in series.items():
        figure = TASKS[kind].figures.get(name) if kind in TASKS else None
        if figure is not None and figure.better:
            panels.append(panel(f"{kind} {name.replace('_', ' ')}, {figure.describe()}", values))
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>{''.join(panels)}</html>\n"
    )
    with atomic_write(path) as file:
        file.write(page.encode())


def panel(title: str, series: Series) -> str:
    """Draws values over steps, with a band of one standard error to either side, as an SVG element."""
    steps, values = list(series), [value for value, _ in series.values()]
    low = min(value - error for value, error in series.values())
    high = max(value + error for value, error in series.values())
    if low == high:
        low, high = low - 1, high + 1

    def x(step: int) -> float:
        share = (step - steps[0]) / (steps[-1] - steps[0]) if len(steps) > 1 else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def points(pairs: list[tuple[int, float]]) -> str:
        return " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in pairs)

    upper = [(step, value + error) for step, (value, error) in series.items()]
    lower = [(step, value - error) for step, (value, error) in reversed(list(series.items()))]
    line = points(list(zip(steps, values, strict=True)))
    floor = _HEIGHT - _BOTTOM
    dots = "".join(
        f'<circle class="dot" cx="{x(step):.1f}" cy="{y(value):.1f}" r="3">'
        f"<title>step {step:,}: {value:,.4f} ± {error:,.4f}</title></circle>"
        for step, (value, error) in series.items()
    )
    ends = steps if len(steps) == 1 else [steps[0], steps[-1]]
    anchors = ["middle"] if len(steps) == 1 else ["start", "end"]
    labels = "".join(
        f'<text x="{x(step):.1f}" y="{floor + 16}" text-anchor="{anchor}">step {step:,}</text>'
        for step, anchor in zip(ends, anchors, strict=True)
    )
    labels += "".join(
        f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.4g}</text>'
        for value in (low, high)
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f'<text class="title" x="8" y="16">{html.escape(title)}</text>'
        f'<path class="axis" d="M{_LEFT},{_TOP}V{floor}H{_WIDTH - _RIGHT}" fill="none"/>'
        f'<polygon class="error" points="{points(upper)} {points(lower)}"/>'
        f'<polyline class="line" points="{line}"/>{dots}{labels}</svg>'
    )
