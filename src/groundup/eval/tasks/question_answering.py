"""Questions of common knowledge in the forms of their authors, and in those of the Hugging Face data sets.

PIQA (Bisk et al. 2019, arXiv:1911.11641), ARC (Clark et al. 2018, arXiv:1803.05457), OpenBookQA (Mihaylov et
al. 2018, arXiv:1809.02789), BoolQ (Clark et al. 2019, arXiv:1905.10044), SciQ (Welbl et al. 2017,
arXiv:1707.06209) and WinoGrande (Sakaguchi et al. 2019, arXiv:1907.10641).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from groundup.core.config_class import config
from groundup.core.errors import DataError
from groundup.eval.task_records import Record, read_records
from groundup.eval.tasks.multiple_choice import ONLY_ACCURACY, MultipleChoice, Question, ask


@config
class Piqa(MultipleChoice):
    """Asks which of two ways reaches a goal; labels may lie in the official file beside."""

    fields: ClassVar = "goal, sol1, sol2, label"
    patterns: ClassVar = ("*piqa*val*.json*", "piqa/val*.json*")

    kind: Literal["piqa"] = "piqa"

    def questions(self, path: Path) -> Iterator[Question]:
        """Takes the labels from ``valid-labels.lst`` beside ``valid.jsonl``, where the items have none."""
        labels = path.with_name(path.name.partition(".")[0] + "-labels.lst")
        answers: Sequence[str] = labels.read_text().split() if labels.is_file() else ()
        for number, record in enumerate(read_records(path)):
            if "label" not in record.fields and number < len(answers):
                record = Record(record.where, {**record.fields, "label": answers[number]})
            yield self.question(record)

    def question(self, record: Record) -> Question:
        """Reads ``goal``, ``sol1``, ``sol2``, ``label``."""
        context = f"Question: {record.text('goal')}\nAnswer:"
        choices = [record.text("sol1"), record.text("sol2")]
        return ask(record, context, choices, record.index("label", (0, 1)))


def _choices(record: Record, inner: Record) -> tuple[list[str], int]:
    """Reads ``choices`` as a list of text and label (the authors'), or as two lists, and ``answerKey``."""
    given = inner["choices"]
    try:
        if isinstance(given, dict):
            labels, texts = list(given["label"]), list(given["text"])
        else:
            labels, texts = [choice["label"] for choice in given], [choice["text"] for choice in given]
    except (KeyError, TypeError):
        raise DataError(
            f"field 'choices' is {given!r}, and must hold texts and labels",
            where=record.where,
            fix="Mend it.",
        ) from None
    return texts, record.index("answerKey", labels)


def _stem_of(record: Record) -> Record:
    """Returns the object that holds stem and choices: the field ``question``, or the item itself."""
    inner = record.fields.get("question")
    return Record(record.where, inner) if isinstance(inner, dict) else record


@config
class ArcEasy(MultipleChoice):
    """Asks questions of natural science that simple methods answer."""

    fields: ClassVar = "question (with stem, choices) or question, choices; answerKey"
    patterns: ClassVar[Sequence[str]] = ("*ARC-Easy*Test*.json*", "*arc_easy*.json*")

    kind: Literal["arc_easy"] = "arc_easy"

    def question(self, record: Record) -> Question:
        """Reads ``question`` with ``stem`` and ``choices``, or both beside it, and ``answerKey``."""
        inner = _stem_of(record)
        stem = record.text("question") if inner is record else inner.text("stem")
        return ask(record, f"Question: {stem}\nAnswer:", *_choices(record, inner))


@config
class ArcChallenge(MultipleChoice):
    """Asks questions of natural science that simple methods fail."""

    fields: ClassVar = "question (with stem, choices) or question, choices; answerKey"
    patterns: ClassVar = ("*ARC-Challenge*Test*.json*", "*arc_challenge*.json*")

    kind: Literal["arc_challenge"] = "arc_challenge"

    def question(self, record: Record) -> Question:
        """Reads it as those of the easy set."""
        return ArcEasy().question(record)


@config
class OpenBookQa(MultipleChoice):
    """Asks questions of elementary science; the model completes the stem."""

    fields: ClassVar = "question (with stem, choices) or question_stem, choices; answerKey"
    patterns: ClassVar = ("*openbookqa*test*.json*", "*OpenBookQA*/**/test*.json*")

    kind: Literal["openbookqa"] = "openbookqa"

    def question(self, record: Record) -> Question:
        """Reads ``question`` with ``stem`` and ``choices``, or ``question_stem``, and ``answerKey``."""
        inner = _stem_of(record)
        stem = record.text("question_stem") if inner is record else inner.text("stem")
        return ask(record, stem, *_choices(record, inner))


@config
class BoolQ(MultipleChoice):
    """Asks questions of yes or no about a passage."""

    fields: ClassVar = "passage, question, answer or label"
    patterns: ClassVar = (
        "*boolq*val*.json*",
        "*boolq*dev*.json*",
        "*BoolQ*/val*.json*",
        "*boolq*/dev*.json*",
    )
    figures: ClassVar = ONLY_ACCURACY

    kind: Literal["boolq"] = "boolq"

    def question(self, record: Record) -> Question:
        """Reads ``passage``, ``question``, and ``answer`` or ``label``."""
        context = f"{record.text('passage')}\nQuestion: {record.text('question')}?\nAnswer:"
        name = "answer" if "answer" in record.fields else "label"
        answers = (False, True) if isinstance(record[name], bool) else (0, 1)
        return ask(record, context, ["no", "yes"], record.index(name, answers))


@config
class SciQ(MultipleChoice):
    """Asks questions of science with the passage that supports the answer."""

    fields: ClassVar = "support, question, distractor1 to 3, correct_answer"
    patterns: ClassVar = ("*sciq*test*.json*", "*SciQ*/**/test*.json*")

    kind: Literal["sciq"] = "sciq"

    def question(self, record: Record) -> Question:
        """Reads ``support``, ``question``, ``distractor1`` to ``distractor3`` and ``correct_answer``."""
        context = f"{record.text('support').lstrip()}\nQuestion: {record.text('question')}\nAnswer:"
        names = ("distractor1", "distractor2", "distractor3", "correct_answer")
        return ask(record, context, [record.text(name) for name in names], 3)


@config
class WinoGrande(MultipleChoice):
    """Asks which of two words fills the blank: that after which the rest of the sentence is more probable."""

    fields: ClassVar = "sentence, option1, option2, answer"
    patterns: ClassVar = ("*winogrande*val*.json*", "*winogrande*dev*.json*", "*winogrande*/**/dev.json*")
    figures: ClassVar = ONLY_ACCURACY

    kind: Literal["winogrande"] = "winogrande"

    def question(self, record: Record) -> Question:
        """Reads ``sentence`` with a ``_``, ``option1``, ``option2``, ``answer``."""
        before, blank, after = record.text("sentence").partition("_")
        if not blank or not after.strip():
            raise DataError(
                f"the sentence {record['sentence']!r} has no blank (_) with text behind it",
                where=record.where,
                fix="Mend the item.",
            )
        options = [record.text("option1"), record.text("option2")]
        return Question(
            where=record.where,
            contexts=[before + option for option in options],
            continuations=[" " + after.strip()] * 2,
            choices=options,
            label=record.index("answer", (1, 2)),
        )
