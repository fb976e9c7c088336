"""The page and the picture of ``growth.py``: lines of cost, and where they bend."""

import itertools
import math
from pathlib import Path
from typing import Any

from groundup.core.progress import human_count

BEND = 1.25
"""Cost of a unit of work, over the cheapest smaller point's, from which a line is said to bend upwards."""

AXES = {
    "parameters": ("parameters", "s a step"),
    "length": ("tokens of a row", "s a step"),
    "ranks": ("ranks", "s a step"),
    "memory": ("planned bytes", "measured bytes"),
    "build": ("MB of text", "s"),
    "documents": ("documents of 20 MB", "s"),
    "checkpoint": ("bytes", "s to save and load"),
}
EXPLAINED = {
    "parameters": "Work is operations: small models spend their time in calls, so that it falls at first.",
    "length": "Work is operations; attention's grow with the square, and take longer each than a product's.",
    "ranks": "Work is the ranks that share a core; what is more is the all-reduce and waiting.",
    "memory": "Work is the plan's estimate.",
    "build": "Work is bytes; the first sizes are mostly the start of the workers.",
    "documents": "Work is bytes, the same for all: what rises is the cost of a document.",
    "checkpoint": "Work is bytes; small ones are mostly files, folders and fsync.",
}


def unit_costs(points: list[dict[str, Any]]) -> list[float]:
    """Returns the cost of a unit of work at each point, over the first one's."""
    costs = [point["y"] / point["work"] for point in points]
    return [cost / costs[0] for cost in costs]


def bends(points: list[dict[str, Any]]) -> list[str]:
    """Names the points at which a unit of work costs more than at any smaller one, by ``BEND``."""
    costs = unit_costs(points)
    return [
        f"{points[number]['name']} ({costs[number] / min(costs[:number]):.2f}x)"
        for number in range(1, len(points))
        if costs[number] > BEND * min(costs[:number])
    ]


def exponents(points: list[dict[str, Any]]) -> list[float]:
    """Returns the slopes between neighbours on logarithmic axes."""
    return [
        math.log(after["y"] / before["y"]) / math.log(after["x"] / before["x"])
        for before, after in itertools.pairwise(points)
    ]


def render(found: dict[str, Any]) -> str:
    """Formats the results as Markdown."""
    lines = [
        "# How cost grows",
        "",
        "Made by `benchmarks/growth.py`. Slope: of the line between a point and the one before, on"
        " logarithmic axes (1 is proportional). Unit: cost of a unit of the work that a point should take,"
        " over the first point's. A line bends upwards where that is"
        f" {BEND:g} times the cheapest smaller point's.",
        "",
        "![Time and memory against size, on logarithmic axes](growth.svg)",
        "",
    ]
    for name, part in found.items():
        points, machine = part["points"], part["machine"]
        x_name, y_name = AXES[name]
        lines += [
            f"## {name}",
            "",
            f"{part['what']} {EXPLAINED[name]}",
            f"{part['date']}, {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}"
            + (", **CPU seconds on one thread, since others used the machine**." if part["busy"] else "."),
            "",
            f"| point | {x_name} | {y_name} | slope | unit |",
            "|---|---|---|---|---|",
        ]
        slopes = ["", *(f"{slope:.2f}" for slope in exponents(points))]
        lines += [
            f"| {point['name']} | {point['x']:,.0f} | {_figure(point['y'])} | {slope} | {cost:.2f} |"
            for point, slope, cost in zip(points, slopes, unit_costs(points), strict=True)
        ]
        bent = bends(points)
        straight = (
            "It does not bend upwards."
            if len(points) > 2
            else "No line yet: too few points in the time given."
        )
        lines += ["", f"Bends upwards at {', '.join(bent)}." if bent else straight, ""]
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """Draws the lines, each with its work as a dashed line from its first point."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "growth"
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter, NullLocator

    columns = 4
    rows = -(-len(found) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(3.2 * columns, 2.6 * rows), layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(found) :]:
        axes.set_visible(False)
    for axes, (name, part) in zip(grid.flat, found.items(), strict=False):
        points = part["points"]
        x = [point["x"] for point in points]
        first = points[0]["y"] / points[0]["work"]
        axes.loglog(x, [first * point["work"] for point in points], "--", color="grey")
        axes.loglog(x, [point["y"] for point in points], "o-")
        axes.set_title(name + (" (CPU seconds)" if part["busy"] else ""), fontsize=9)
        axes.set_xlabel(AXES[name][0], fontsize=8)
        axes.set_ylabel(AXES[name][1], fontsize=8)
        axes.set_xticks(x, [human_count(value) for value in x])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
