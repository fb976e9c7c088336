"""What every evaluation task offers."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

from groundup.checkpoint.lazy import LoadedModel

Results = dict[str, float | int]
"""Name of a figure -> its value, in the order in which they are shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """How a figure is read.

    Attributes:
        unit: Of its value; empty for a count or a ratio.
        better: Which of two models is better by it; None where it says nothing of the model.
    """

    unit: str = ""
    better: Literal["higher", "lower"] | None = None

    def describe(self) -> str:
        """Says unit and direction in a few words."""
        return ", ".join(filter(None, (self.unit, self.better and f"{self.better} is better")))


class EvaluationTask(abc.ABC):
    """Measures a model on data; a ``@config`` class with a ``kind``, whose fields are its options.

    Each field has a default; a command line sets it as ``kind.field=value``.
    """

    figures: ClassVar[Mapping[str, Figure]]
    """The figures that ``measure`` returns, in their order."""

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
