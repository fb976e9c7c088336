"""What every evaluation task offers."""

import abc
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeVar

from groundup.checkpoint.lazy import LoadedModel, require_finite_loss
from groundup.core.errors import DataError
from groundup.core.progress import Progress
from groundup.eval.scoring import Request, Score, loglikelihood
from groundup.eval.text_requests import UnscorableError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """How a figure is read.

    Attributes:
        unit: Of its value; empty for a count or a ratio.
        better: Which of two models is better by it; None where it says nothing of the model.
        exponential: It is exp of the mean of the items' values, and not the mean.
    """

    unit: str = ""
    better: Literal["higher", "lower"] | None = None
    exponential: bool = False

    def describe(self) -> str:
        """Says unit and direction in a few words."""
        return ", ".join(filter(None, (self.unit, self.better and f"{self.better} is better")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """Holds what was found of one item.

    Attributes:
        where: File and line.
        prompt: What the model was given.
        prediction: What it prefers.
        target: What is right.
        values: Figure -> what this item adds to its mean.
        scores: Of each continuation.
    """

    where: str
    prompt: str
    prediction: str
    target: str
    values: Mapping[str, float]
    scores: Sequence[Score]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """Holds what a task found.

    Attributes:
        figures: Name -> value, in the order in which they are shown.
        standard_errors: Of the figures that are means over items.
        items: One by one, where the task has items.
        num_truncated: Items whose context was cut at its beginning to fit the model's.
        skipped: Place of each item that the model cannot score -> why; these count nowhere.
    """

    figures: Mapping[str, float | int]
    standard_errors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    items: Sequence[Item] = ()
    num_truncated: int = 0
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)


def summarise(
    items: Sequence[Item], figures: Mapping[str, Figure], skipped: Mapping[str, str], /, **counts: int
) -> Results:
    """Averages the values of items; ``counts`` are figures of their own.

    The standard error of a mean is the sample's standard deviation over sqrt(n); that of exp(mean) is this
    times exp(mean), the first term of its series.
    """
    found: dict[str, float | int] = {}
    errors: dict[str, float] = {}
    for name, figure in figures.items():
        if name in counts:
            found[name] = counts[name]
            continue
        values = [item.values[name] for item in items]
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
        found[name] = math.exp(min(700.0, mean)) if figure.exponential else mean
        errors[name] = math.sqrt(spread / len(values)) * (found[name] if figure.exponential else 1)
    truncated = sum(any(score.num_truncated for score in item.scores) for item in items)
    return Results(
        figures=found, standard_errors=errors, items=items, num_truncated=truncated, skipped=skipped
    )


class EvaluationTask(abc.ABC):
    """Measures a model on data; a ``@config`` class with a ``kind``, whose fields are its options.

    Each field has a default; a command line sets it as ``kind.field=value``.
    """

    figures: ClassVar[Mapping[str, Figure]]
    """The figures that ``measure`` returns, in their order."""
    patterns: ClassVar[Sequence[str]] = ()
    """Globs of its file within a folder, of which the first with a match counts; none reads folders whole."""

    reads_folders: ClassVar[bool] = False
    """A folder without such a file is read whole."""

    def for_model(self, loaded: LoadedModel) -> Self:
        """Returns the task with the options that were left to the model."""
        return self

    @abc.abstractmethod
    def measure(self, loaded: LoadedModel, data: Sequence[Path]) -> Results:
        """Measures the model on the data.

        Raises:
            DataError: The data is not what the task reads.
            CheckpointError: The model computes losses that are not finite.
        """

    @classmethod
    def find_files(cls, data: Sequence[Path]) -> list[Path]:
        """Returns the files of this task among files, and within folders.

        Raises:
            DataError: There is none, or a folder has several.
        """
        found: list[Path] = []
        for path in data:
            if not path.is_dir() or not cls.patterns:
                found.append(path)
                continue
            matches = next((some for glob in cls.patterns if (some := sorted(path.rglob(glob)))), [])
            if cls.reads_folders and not matches:
                matches = [path]
            if len(matches) != 1:
                several = f"several ({', '.join(map(str, matches))})" if matches else "none"
                raise DataError(
                    f"of files like {' or '.join(cls.patterns)} there are {several} in this folder",
                    where=path,
                    fix="Name the file itself.",
                )
            found += matches
        return found


def scorable(
    items: Iterable[T], ask: Callable[[T], Sequence[Request]]
) -> tuple[list[T], list[Request], dict[str, str]]:
    """Separates the items that the model can score from those that it cannot.

    Returns:
        The former, their requests in order, and of the others the place and why.

    Raises:
        DataError: It can score none.
    """
    kept: list[T] = []
    requests: list[Request] = []
    skipped: dict[str, str] = {}
    for item in items:
        try:
            requests += ask(item)
        except UnscorableError as error:
            skipped[error.where] = error.what
        else:
            kept.append(item)
    if skipped and not kept:
        where, why = next(iter(skipped.items()))
        raise DataError(f"the model can score none of {len(skipped):,} items; here {why}", where=where)
    return kept, requests, skipped


def score_items(
    loaded: LoadedModel, requests: Sequence[Request], *, batch_size: int, banned_ids: Sequence[int] = ()
) -> list[Score]:
    """Scores requests of a task, with progress.

    Raises:
        CheckpointError: The model's log-probabilities are not finite.
    """
    with Progress("evaluate", len(requests), "continuations") as progress:
        scores = loglikelihood(
            loaded.model,
            loaded.config,
            requests,
            batch_size=batch_size,
            banned_ids=banned_ids,
            on_progress=lambda some: progress.add(len(some)),
        )
    require_finite_loss(-sum(score.logprob for score in scores), loaded)
    return scores
