"""What is measured of a model while it trains, as configs."""

from pathlib import Path
from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import NotNegative, NotNegativeFloat, Positive


@config
class ValidationConfig:
    """Loss on held-out text.

    Attributes:
        interval: Steps between validations; 0 for none. The run ends with one, of the test split too.
        num_batches: Micro-batches of each validation; 0 for the whole split.
        patience: Measurements in a row without a better value that end the run early; 0 for never.
        metric: What is to improve: "loss" or another figure of validations, or one of a task, such as
            "eval/lambada.accuracy".
        better: Which values of it are.
    """

    interval: NotNegative = 250
    num_batches: NotNegative = 20
    patience: NotNegative = 0
    metric: str = "loss"
    better: Literal["lower", "higher"] = "lower"

    def __post_init__(self) -> None:
        """Refuses to wait for what is never measured."""
        if self.patience and not self.interval and not self.metric.startswith("eval/"):
            raise ValueError("patience needs validations: set interval")


@config
class EvalConfig:
    """Scores of evaluation tasks while training.

    Attributes:
        every: Steps between evaluations; 0 for none. The run ends with one.
        tasks: Which, separated by commas, as ``groundup eval --tasks`` takes them: lambada,hellaswag.
        data: A file, or a folder in which each task finds its own by name.
        options: Of the tasks, as there, separated by blanks: "lambada.limit=500 hellaswag.prompt=plain".
    """

    every: NotNegative = 0
    tasks: str = ""
    data: Path | None = None
    options: str = ""

    def __post_init__(self) -> None:
        """Refuses half of what an evaluation needs."""
        if self.every and not (self.tasks and self.data is not None):
            raise ValueError("eval.every needs eval.tasks and eval.data")


@config
class SampleConfig:
    """Completions of prompts while training, to see the model learn.

    Attributes:
        interval: Steps between samples; 0 for none.
        prompt: Text to complete.
        prompts: Several of them, instead.
        max_new_tokens: Length of a completion.
        temperature: 0 is greedy.
    """

    interval: NotNegative = 0
    prompt: str = "\n"
    prompts: tuple[str, ...] = ()
    max_new_tokens: Positive = 64
    temperature: NotNegativeFloat = 0.8

    @property
    def texts(self) -> tuple[str, ...]:
        """Returns what is completed."""
        return self.prompts or (self.prompt,)
