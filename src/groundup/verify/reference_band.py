"""The band around a reference's losses, and where the losses of a run lie in it.

Losses of single steps are noisy: means over windows of steps are compared, each with the same steps of every
seed. A run is one more draw of what the seeds are draws of, so it differs from their mean by a standard
deviation times sqrt(1 + 1 / seeds). That of so few seeds in one window says little, so it is taken over the
windows around it too, from half the step to twice the step, where the loss falls about as fast; and Student's
distribution tells, by the number of these, how far one more draw may lie.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from groundup.report.run_records import number
from groundup.verify.references import Losses, Point, Reference

EDGES = (10, 25, 50)
"""Ends of the first windows; after these one every so many steps as the last."""
FALSE_ALARMS = 0.001
"""Share of a right run's windows that are outside."""
FLOOR = 0.01
"""Least half width, as a share of the loss: what another machine, number format or version may change."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Mean losses over the steps after ``first`` up to ``last``, of a run and of its reference.

    Attributes:
        kind: "training" or "validation".
        loss: Of the run; not finite where one of its losses was not.
        expected: Mean of the reference's.
        half_width: Of the band.
    """

    kind: str
    first: int
    last: int
    loss: float
    expected: float
    half_width: float

    @property
    def deviation(self) -> float:
        """How far the run is from the middle, in half widths of the band; infinite without a finite loss."""
        found = (self.loss - self.expected) / self.half_width
        return found if math.isfinite(found) else math.inf

    @property
    def is_inside(self) -> bool:
        """Whether the run lies in the band."""
        return abs(self.deviation) <= 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Stretch:
    first: int
    last: int
    loss: float


def training_windows(
    records: Sequence[dict[str, Any]],
    starts: Sequence[int],
    reference: Reference,
    scales: tuple[float, float],
) -> Iterator[Window]:
    """Compares the training losses of a run with a reference that has those of every step.

    Args:
        records: Of training, each with the mean loss since the one before.
        starts: Steps at which the run was begun and gone on with, which begin a record too.
        reference: With seeds.
        scales: What the losses of the run and of the reference are multiplied with.
    """
    ours, theirs = scales
    for stretch in _joined(_stretches(records, starts), reference.num_steps):
        means = reference.losses[:, stretch.first : stretch.last].mean(axis=1)
        expected = float(means.mean()) * theirs
        wide = _half_width(_variances(reference.losses, stretch), len(means)) * theirs
        yield Window(
            kind="training",
            first=stretch.first,
            last=stretch.last,
            loss=stretch.loss * ours,
            expected=expected,
            half_width=max(wide, FLOOR * expected),
        )


def validation_windows(
    records: Sequence[dict[str, Any]], reference: Reference, scales: tuple[float, float]
) -> Iterator[Window]:
    """Compares the validations at steps of which the seeds have one; see ``training_windows``."""
    ours, theirs = scales
    variances = [float(np.var(found, ddof=1)) for found in reference.validations.values()]
    for record in records:
        found, loss = reference.validations.get(int(record["step"])), number(record.get("loss"))
        if found is None:
            continue
        wide = _half_width(variances, len(found)) * theirs
        expected = float(np.mean(found)) * theirs
        yield Window(
            kind="validation",
            first=int(record["step"]),
            last=int(record["step"]),
            loss=math.nan if loss is None else loss * ours,
            expected=expected,
            half_width=max(wide, FLOOR * expected),
        )


def published_windows(
    records: Sequence[tuple[int, float, float | None]], reference: Reference
) -> Iterator[Window]:
    """Compares validations with a published curve, at the same number of tokens; between points on a line.

    Args:
        records: Step, tokens and loss of each validation.
        reference: With points.
    """
    points = sorted(reference.points, key=lambda point: point.tokens)
    tokens = [point.tokens for point in points]
    for step, seen, loss in records:
        if tokens[0] <= seen <= tokens[-1]:
            expected = _between(points, seen)
            yield Window(
                kind="validation",
                first=step,
                last=step,
                loss=math.nan if loss is None else loss,
                expected=expected,
                half_width=reference.tolerance * expected,
            )


def _between(points: Sequence[Point], tokens: float) -> float:
    return float(np.interp(tokens, [point.tokens for point in points], [point.loss for point in points]))


def _stretches(records: Sequence[dict[str, Any]], starts: Sequence[int]) -> Iterator[_Stretch]:
    before = 0
    for record in records:
        step, loss = int(record["step"]), number(record.get("loss"))
        first = max([before, *(start for start in starts if start < step)])
        before = step
        yield _Stretch(first, step, math.nan if loss is None else loss)


def _joined(stretches: Iterator[_Stretch], num_steps: int) -> Iterator[_Stretch]:
    """Joins stretches to windows, the last of which may be shorter; up to ``num_steps``."""
    kept: list[_Stretch] = []
    for stretch in stretches:
        if stretch.last > num_steps:
            break
        if kept and stretch.first != kept[-1].last:  # what lies between was made before a restart
            yield _mean(kept)
            kept = []
        kept.append(stretch)
        if stretch.last >= _edge_after(kept[0].first):
            yield _mean(kept)
            kept = []
    if kept:
        yield _mean(kept)


def _edge_after(step: int) -> int:
    return next((edge for edge in EDGES if edge > step), (step // EDGES[-1] + 1) * EDGES[-1])


def _mean(stretches: Sequence[_Stretch]) -> _Stretch:
    steps = [stretch.last - stretch.first for stretch in stretches]
    total = sum(stretch.loss * count for stretch, count in zip(stretches, steps, strict=True))
    return _Stretch(stretches[0].first, stretches[-1].last, total / sum(steps))


def _variances(losses: Losses, stretch: _Stretch) -> list[float]:
    """Variances between seeds, of windows as long as this one: it, and those around it."""
    length = stretch.last - stretch.first
    before = [first for first in range(stretch.first, -1, -length) if first >= stretch.first // 2]
    after = range(stretch.last, min(2 * stretch.last, losses.shape[1]) - length + 1, length)
    return [float(losses[:, first : first + length].mean(axis=1).var(ddof=1)) for first in [*before, *after]]


def _half_width(variances: Sequence[float], seeds: int) -> float:
    """Student's quantile times the standard deviation of one more run around the mean of the seeds."""
    deviation = math.sqrt(sum(variances) / len(variances) * (1 + 1 / seeds))
    return student_quantile(FALSE_ALARMS, len(variances) * (seeds - 1)) * deviation


def student_quantile(share: float, freedom: int) -> float:
    """What a share of Student's distribution lies beyond, on both sides together.

    By its expansion around the normal one (Abramowitz and Stegun, Handbook of Mathematical Functions,
    26.7.5), which is 5% too small for 4 degrees of freedom and 0.1% for 12.
    """
    z = statistics.NormalDist().inv_cdf(1 - share / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))
