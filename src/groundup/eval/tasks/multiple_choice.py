"""Questions with choices: the model picks the continuation that it finds most probable.

The prompts are those of EleutherAI's lm-evaluation-harness (version 0.4), and so are the four ways to compare
choices of unequal length: by the log-probability as it is (its ``acc``), divided by the characters of the
choice (``acc_norm``), by its bytes (``acc_bytes``), or by its tokens, which is the mean loss.
"""

import abc
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.config_class import NotNegative, config
from groundup.core.errors import DataError
from groundup.eval.scoring import Request, Score
from groundup.eval.task_records import MissingFieldError, Record, read_records
from groundup.eval.tasks.evaluation_task import (
    EvaluationTask,
    Figure,
    Item,
    Results,
    scorable,
    score_items,
    summarise,
)
from groundup.eval.text_requests import text_request

_OFFICIAL_FORMAT = "Name a file of this task in its official format: see docs/guides/evaluation.md."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """Holds one item.

    Attributes:
        where: File and line.
        contexts: What stands before each choice; most questions have the same before all.
        continuations: What is scored behind each, with the blank that separates it.
        choices: As they are written; scores are divided by their lengths.
        label: Index of the right one.
        subject: Of few-shot examples and of what stands before them, where the task has subjects.
    """

    where: str
    contexts: Sequence[str]
    continuations: Sequence[str]
    choices: Sequence[str]
    label: int
    subject: str = ""

    def __post_init__(self) -> None:
        """Refuses an item that leaves no choice."""
        if len(self.choices) < 2:
            raise DataError(
                f"the item has {len(self.choices)} choices, and needs two or more",
                where=self.where,
                fix="Mend the item.",
            )

    def solved(self) -> str:
        """Returns the text with the right choice, as a few-shot example."""
        return self.contexts[self.label] + self.continuations[self.label]


def ask(record: Record, context: str, choices: Sequence[str], label: int, *, subject: str = "") -> Question:
    """Makes a question whose choices follow one context behind a blank."""
    return Question(
        where=record.where,
        contexts=[context] * len(choices),
        continuations=[f" {choice}" for choice in choices],
        choices=choices,
        label=label,
        subject=subject,
    )


ONLY_ACCURACY = {"accuracy": Figure(better="higher"), "items": Figure()}
"""Figures of a task whose choices are of one length, or whose protocol knows no other."""


@config
class MultipleChoice(EvaluationTask):
    """Asks questions of which each choice is scored.

    Attributes:
        num_fewshot: So many solved examples stand before each question.
        fewshot_data: The file whose first items these are.
        batch_size: Questions at a time; 0 for as many as are fast and fit into memory. Changes no result.
        limit: Read only the first so many questions; 0 for all.
    """

    figures: ClassVar = {
        "accuracy": Figure(better="higher"),
        "accuracy_norm": Figure(unit="by characters", better="higher"),
        "accuracy_bytes": Figure(unit="by bytes", better="higher"),
        "accuracy_mean_loss": Figure(unit="by tokens", better="higher"),
        "items": Figure(),
    }
    columns: ClassVar[Sequence[str]] = ()
    fields: ClassVar[str]
    """Those of an item, for messages."""

    num_fewshot: NotNegative = 0
    fewshot_data: str = ""
    batch_size: NotNegative = 0
    limit: NotNegative = 0

    def __post_init__(self) -> None:
        """Refuses examples without a file, and a file without a number."""
        if bool(self.num_fewshot) != bool(self.fewshot_data):
            raise ValueError("num_fewshot and fewshot_data go together")

    @abc.abstractmethod
    def question(self, record: Record) -> Question:
        """Reads an item in its official format.

        Raises:
            DataError: It is not of that format.
        """

    def questions(self, path: Path) -> Iterator[Question]:
        """Reads the questions of a file."""
        return map(self.question, read_records(path, columns=self.columns))

    def preamble(self, subject: str) -> str:
        """Returns the text before the few-shot examples: that of the task, and these."""
        examples = itertools.islice(self.questions(Path(self.fewshot_data)), self.num_fewshot)
        return "".join(example.solved() + "\n\n" for example in examples) if self.num_fewshot else ""

    def measure(self, loaded: LoadedModel, data: Sequence[Path]) -> Results:
        """Returns the share of questions whose right choice scores best, by each way to compare them."""
        files = self.find_files(data)
        found = itertools.chain.from_iterable(map(self.questions, files))
        try:
            questions = list(itertools.islice(found, self.limit or None))
        except MissingFieldError as error:
            what = f"{error.what}; this task reads {self.fields}"
            raise DataError(what, where=error.where, fix=_OFFICIAL_FORMAT) from None
        if not questions:
            raise DataError(
                "there is no item in it", where=", ".join(map(str, files)), fix="Name a file with items."
            )
        preambles = {subject: self.preamble(subject) for subject in {q.subject for q in questions}}

        def ask_all(question: Question) -> list[Request]:
            before = preambles[question.subject]
            pairs = zip(question.contexts, question.continuations, strict=True)
            return [text_request(loaded, before + one, other, where=question.where) for one, other in pairs]

        questions, requests, skipped = scorable(questions, ask_all)
        scores = iter(score_items(loaded, requests, batch_size=self.batch_size))
        names = [name for name in self.figures if name != "items"]
        items = [
            _judge(question, list(itertools.islice(scores, len(question.choices))), names)
            for question in questions
        ]
        return summarise(items, self.figures, skipped, items=len(items))


def _judge(question: Question, scores: Sequence[Score], names: Sequence[str]) -> Item:
    lengths = {
        "accuracy": [1] * len(scores),
        "accuracy_norm": [len(choice) for choice in question.choices],
        "accuracy_bytes": [len(choice.encode()) for choice in question.choices],
        "accuracy_mean_loss": [score.num_tokens for score in scores],
    }
    logprobs = [score.logprob for score in scores]
    picks = {name: _best(logprobs, some) for name, some in lengths.items()}
    return Item(
        where=question.where,
        prompt=question.contexts[question.label],
        prediction=question.choices[picks["accuracy"]],
        target=question.choices[question.label],
        values={name: float(picks[name] == question.label) for name in names},
        scores=scores,
    )


def _best(logprobs: Sequence[float], lengths: Sequence[int]) -> int:
    """Returns the index of the best score per length; an empty choice is never the best by its length."""
    shares = [
        logprob / length if length else float("-inf")
        for logprob, length in zip(logprobs, lengths, strict=True)
    ]
    return shares.index(max(shares))
