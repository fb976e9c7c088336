"""StoryCloze: which of two endings a story has (Mostafazadeh et al. 2016, arXiv:1604.01696)."""

from typing import ClassVar, Literal

from groundup.core.config_class import config
from groundup.eval.task_records import Record
from groundup.eval.tasks.multiple_choice import ONLY_ACCURACY, MultipleChoice, Question, ask

_OFFICIAL = (
    *(f"InputSentence{number}" for number in range(1, 5)),
    *("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2", "AnswerRightEnding"),
)
_JSON = (
    *(f"input_sentence_{number}" for number in range(1, 5)),
    *("sentence_quiz1", "sentence_quiz2", "answer_right_ending"),
)


@config
class StoryCloze(MultipleChoice):
    """Asks which of two sentences ends a story."""

    fields: ClassVar = "InputSentence1 to 4, RandomFifthSentenceQuiz1 and 2, AnswerRightEnding"
    patterns: ClassVar = ("*cloze*test*.*", "*cloze*val*.*", "*cloze*.*")
    figures: ClassVar = ONLY_ACCURACY

    kind: Literal["storycloze"] = "storycloze"

    def question(self, record: Record) -> Question:
        """Reads a line of the official CSV, or an object of the JSON with the same fields."""
        *sentences, first, second, answer = _JSON if _JSON[0] in record.fields else _OFFICIAL
        story = " ".join(record.text(name) for name in sentences)
        return ask(record, story, [record.text(first), record.text(second)], record.index(answer, (1, 2)))
