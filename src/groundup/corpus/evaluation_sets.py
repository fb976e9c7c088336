"""The evaluation tasks that have files of their own: by what names, and what their items say.

The tasks themselves find their files by these names; what is trained on is kept clear of these texts.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from groundup.core.config_sources import nearest
from groundup.core.errors import DataError
from groundup.corpus.line_blocks import decompressed
from groundup.corpus.task_records import Record, read_records

Texts = Callable[[Record], list[str]]

_CHUNK = 1 << 20
_MARK = re.compile(r"\[.*?\] ?")  # of WikiHow, such as [step]
_ENDINGS = ("endings", "choices", "options")
_TEXTS = ("text", "ctx", "question", "goal", "prompt", "sentence", "context", "content")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """The official files of a task.

    Attributes:
        patterns: Globs of their names within a folder, of which the first with a match counts.
        texts: What an item says, once for each of its choices.
        columns: Names of the columns of a CSV file whose first line does not name them.
        is_prose: The file is one text, of which each line that is not empty counts as an item.
    """

    patterns: tuple[str, ...]
    texts: Texts
    columns: tuple[str, ...] = ()
    is_prose: bool = False


def _each(context: str, choices: Sequence[object]) -> list[str]:
    return [f"{context} {choice}" for choice in choices]


def _hellaswag(record: Record) -> list[str]:
    endings = record.texts("endings")
    parted = "ctx" not in record.fields
    context = f"{record.text('ctx_a')} {record.text('ctx_b')}" if parted else record.text("ctx")
    return [_MARK.sub("", text) for text in _each(context, endings)]


def _storycloze(record: Record) -> list[str]:
    official = "InputSentence1" in record.fields
    story = "InputSentence{}" if official else "input_sentence_{}"
    ending = "RandomFifthSentenceQuiz{}" if official else "sentence_quiz{}"
    context = " ".join(record.text(story.format(number)) for number in range(1, 5))
    return _each(context, [record.text(ending.format(number)) for number in (1, 2)])


def _science(record: Record) -> list[str]:
    """An item of ARC or OpenBookQA, in either form."""
    inner = record.fields.get("question")
    if isinstance(inner, dict):
        within = Record(record.where, inner)
        return _each(within.text("stem"), within.choices()[1])
    name = "question_stem" if "question_stem" in record.fields else "question"
    return _each(record.text(name), record.choices()[1])


def _sciq(record: Record) -> list[str]:
    names = ("correct_answer", "distractor1", "distractor2", "distractor3")
    context = f"{record.text('support')} {record.text('question')}"
    return _each(context, [record.text(name) for name in names])


def _winogrande(record: Record) -> list[str]:
    return [record.text("sentence").replace("_", record.text(name), 1) for name in ("option1", "option2")]


EVALUATION_SETS: Mapping[str, EvaluationSet] = {
    "lambada": EvaluationSet(patterns=("*lambada*test*.jsonl*",), texts=lambda record: [record.text("text")]),
    "hellaswag": EvaluationSet(patterns=("*hellaswag*val*.json*", "*hellaswag*.json*"), texts=_hellaswag),
    "storycloze": EvaluationSet(patterns=("*cloze*test*.*", "*cloze*val*.*", "*cloze*.*"), texts=_storycloze),
    "wikitext": EvaluationSet(
        patterns=("wiki.test.tokens*", "wiki.test.*"),
        texts=lambda record: [record.text("text")],
        is_prose=True,
    ),
    "piqa": EvaluationSet(
        patterns=("*piqa*val*.json*", "piqa/val*.json*"),
        texts=lambda record: _each(record.text("goal"), [record.text("sol1"), record.text("sol2")]),
    ),
    "arc_easy": EvaluationSet(patterns=("*ARC-Easy*Test*.json*", "*arc_easy*.json*"), texts=_science),
    "arc_challenge": EvaluationSet(
        patterns=("*ARC-Challenge*Test*.json*", "*arc_challenge*.json*"), texts=_science
    ),
    "openbookqa": EvaluationSet(
        patterns=("*openbookqa*test*.json*", "*OpenBookQA*/**/test*.json*"), texts=_science
    ),
    "boolq": EvaluationSet(
        patterns=(
            *("*boolq*val*.json*", "*boolq*dev*.json*"),
            *("*BoolQ*/val*.json*", "*boolq*/dev*.json*"),
        ),
        texts=lambda record: [record.text("passage"), record.text("question")],
    ),
    "sciq": EvaluationSet(patterns=("*sciq*test*.json*", "*SciQ*/**/test*.json*"), texts=_sciq),
    "winogrande": EvaluationSet(
        patterns=("*winogrande*val*.json*", "*winogrande*dev*.json*", "*winogrande*/**/dev.json*"),
        texts=_winogrande,
    ),
    "mmlu": EvaluationSet(
        patterns=("*mmlu*/**/*_test.csv*", "test/*_test.csv*", "*_test.csv*"),
        texts=lambda record: _each(record.text("question"), [record.text(letter) for letter in "ABCD"]),
        columns=("question", *"ABCD", "answer"),
    ),
}
"""By the kinds of their tasks."""


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationFile:
    """A file of items.

    Attributes:
        path: The file.
        task: The kind of its task; empty for a file of no task known here.
    """

    path: Path
    task: str = ""

    @property
    def checksum(self) -> str:
        """Of its content, whether it is compressed or not."""
        return content_checksum(self.path)

    def items(self) -> Iterator[tuple[str, list[str]]]:
        """Yields of each item its place in the file (``:17`` for line 17) and its texts.

        Raises:
            DataError: The file is not of its task's format; or an item has no text.
        """
        known = EVALUATION_SETS.get(self.task)
        if known and known.is_prose:
            with decompressed(self.path) as lines:
                for number, line in enumerate(lines, 1):
                    if text := line.decode("utf-8", "replace").strip():
                        yield f":{number}", [text]
            return
        for record in read_records(self.path, columns=known.columns if known else ()):
            place = record.where.removeprefix(str(self.path))
            yield place, known.texts(record) if known else _texts_of_any(record)


def find_evaluation_files(against: Sequence[str], data: Sequence[Path]) -> list[EvaluationFile]:
    """Finds what is meant by names of tasks and by files.

    Args:
        against: Kinds of tasks, and paths.
        data: Where the files of tasks lie: folders, which are searched by name, and files.

    Raises:
        DataError: There is no such file, or no such task.
    """
    if missing := [path for path in data if not path.exists()]:
        raise DataError(
            "there is no such file or folder", where=missing[0], fix="Name the folder of the files."
        )
    tasks = [word for word in against if word in EVALUATION_SETS]
    found: list[EvaluationFile] = []
    for word in dict.fromkeys(against):
        if word in EVALUATION_SETS:
            paths = _files_of(word, data, is_only=len(tasks) == 1)
            found += [EvaluationFile(path, word) for path in paths]
        elif Path(word).is_file():
            found.append(EvaluationFile(Path(word)))
        else:
            raise DataError(
                "there is no such file of items, and no such task",
                where=word,
                fix=nearest(word, EVALUATION_SETS)
                or f"Name a file (.jsonl, .json, .csv, .tsv), or tasks: {', '.join(EVALUATION_SETS)}.",
            )
    return found


def _files_of(task: str, data: Sequence[Path], *, is_only: bool) -> list[Path]:
    patterns = EVALUATION_SETS[task].patterns
    if not data:
        raise DataError(
            f"where the file of {task} lies is not said",
            where="--against",
            fix="Name its folder with --data (in a recipe: data), or the file itself.",
        )
    files = [path for path in data if path.is_file()]
    named = [path for path in files if is_only or any(path.match(glob) for glob in patterns)]
    for folder in (path for path in data if path.is_dir()):
        matches = (sorted(path for path in folder.rglob(glob) if path.is_file()) for glob in patterns)
        named += [path for path in next(filter(None, matches), ()) if _belongs(path, task)]
    if not named:
        raise DataError(
            f"there is no file of {task}, named like {' or '.join(patterns)}",
            where=", ".join(map(str, data)),
            fix="Name the file itself behind --data.",
        )
    return named


def _belongs(path: Path, task: str) -> bool:
    """Whether a file is none of another task's: the names of MMLU's files say little."""
    others = (known.patterns for kind, known in EVALUATION_SETS.items() if kind != task)
    return task != "mmlu" or not any(path.match(glob) for patterns in others for glob in patterns)


@functools.lru_cache(maxsize=64)
def _checksum(path: Path, size: int, mtime_ns: int) -> str:
    digest = xxhash.xxh3_128()
    with decompressed(path) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return f"xxh3:{digest.hexdigest()}"


def content_checksum(path: Path) -> str:
    """The xxh3-128 of a file's content, whether it is compressed or not."""
    status = path.stat()
    return _checksum(path, status.st_size, status.st_mtime_ns)


def _texts_of_any(record: Record) -> list[str]:
    fields = record.fields
    text = next((fields[name] for name in _TEXTS if isinstance(fields.get(name), str)), None)
    if text is None:
        raise DataError(
            f"the item has no text: its fields are {', '.join(map(str, fields)) or 'none'}",
            where=record.where,
            fix=f"Name the text of an item {', '.join(_TEXTS[:-1])} or {_TEXTS[-1]}, or name its task.",
        )
    endings: list[Any] = next((fields[name] for name in _ENDINGS if isinstance(fields.get(name), list)), [])
    return [f"{text} {ending}" for ending in endings if isinstance(ending, str)] or [text]
