"""MMLU: exams of 57 subjects (Hendrycks et al. 2020, arXiv:2009.03300), from the authors' CSV files."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from groundup.core.config_class import config
from groundup.core.errors import DataError
from groundup.eval.task_records import Record, read_records
from groundup.eval.tasks.multiple_choice import ONLY_ACCURACY, MultipleChoice, Question, ask

_LETTERS = ("A", "B", "C", "D")


@config
class Mmlu(MultipleChoice):
    """Asks questions with four choices; the model answers by their letter.

    The subject is the file's name before ``_test``; ``fewshot_data`` is the folder of ``*_dev.csv``.
    """

    patterns: ClassVar = ("test/*_test.csv", "*_test.csv")
    fields: ClassVar = "six columns without a header: question, four choices, letter"
    columns: ClassVar = ("question", *_LETTERS, "answer")
    figures: ClassVar = ONLY_ACCURACY

    kind: Literal["mmlu"] = "mmlu"

    @classmethod
    def find_files(cls, data: Sequence[Path]) -> list[Path]:
        """Returns files, and folders of one file a subject: those called ``test`` below, or else itself."""
        return [
            folder
            for path in data
            for folder in sorted({file.parent for file in path.rglob("test/*_test.csv")}) or [path]
        ]

    def questions(self, path: Path) -> Iterator[Question]:
        """Reads a file of one subject, or the files of a folder."""
        files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        for file in files:
            subject = file.name.partition(".")[0].rpartition("_")[0]
            for record in read_records(file, columns=self.columns):
                yield self.question(Record(record.where, {**record.fields, "subject": subject}))

    def question(self, record: Record) -> Question:
        """Reads the question, its choices and the letter of the right one."""
        choices = [record.text(letter) for letter in _LETTERS]
        shown = "".join(f"{letter}. {choice}\n" for letter, choice in zip(_LETTERS, choices, strict=True))
        context = f"{record.text('question').strip()}\n{shown}Answer:"
        return ask(
            record, context, _LETTERS, record.index("answer", _LETTERS), subject=record.text("subject")
        )

    def preamble(self, subject: str) -> str:
        """Returns the line that names the subject, and examples of it."""
        about = subject.replace("_", " ")
        line = f"The following are multiple choice questions (with answers) about {about}.\n\n"
        if not self.num_fewshot:
            return line
        path = Path(self.fewshot_data) / f"{subject}_dev.csv"
        if not path.is_file():
            raise DataError("there is no file of examples", where=path, fix="Name the folder of *_dev.csv.")
        examples = itertools.islice(self.questions(path), self.num_fewshot)
        return line + "".join(example.solved() + "\n\n" for example in examples)
