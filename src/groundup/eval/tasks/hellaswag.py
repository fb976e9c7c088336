"""HellaSwag: which ending goes on (Zellers et al. 2019, arXiv:1905.07830).

``prompt=lm-eval`` is EleutherAI's: the activity, the context with its last sentence capitalised, and marks of
WikiHow removed. ``prompt=plain`` is build-nanogpt's and llm.c's: context and endings as they stand.
"""

import re
from typing import ClassVar, Literal

from groundup.core.config_class import config
from groundup.eval.task_records import Record
from groundup.eval.tasks.multiple_choice import MultipleChoice, Question, ask


@config
class HellaSwag(MultipleChoice):
    """Asks which of four endings goes on.

    Attributes:
        prompt: "lm-eval" cleans the text up and names the activity; "plain" takes it as it stands.
    """

    fields: ClassVar = "ctx_a, ctx_b and activity_label, or ctx; endings, label"
    patterns: ClassVar = ("*hellaswag*val*.json*", "*hellaswag*.json*")

    kind: Literal["hellaswag"] = "hellaswag"
    prompt: Literal["lm-eval", "plain"] = "lm-eval"

    def question(self, record: Record) -> Question:
        """Reads ``ctx_a``, ``ctx_b`` and ``activity_label``, or ``ctx``; ``endings``, ``label``."""
        endings = record.texts("endings")
        label = record.index("label", range(len(endings)))
        if self.prompt == "plain":
            return ask(record, record.text("ctx"), endings, label)
        if "ctx_a" in record.fields:
            context = f"{record.text('ctx_a')} {record.text('ctx_b').capitalize()}"
            context = f"{record.text('activity_label')}: {context}"
        else:
            context = record.text("ctx")
        return ask(record, _clean(context), [_clean(ending) for ending in endings], label)


def _clean(text: str) -> str:
    """Removes marks such as [step] that the WikiHow part has, and the blanks around them."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")
