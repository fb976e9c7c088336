"""One number for several tasks, as the CORE of DataComp-LM (Li et al. 2024, arXiv:2406.11794) centres them.

Each accuracy becomes (accuracy - chance) / (1 - chance), which is 0 for guessing and 1 for knowing, and the
mean of these is taken. CORE has 22 tasks; eight of them are tasks here, so this is no CORE score and is not
called one. Choices of unequal length are compared by their mean loss a token, as there; the prompts are those
of EleutherAI's harness.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class _Part:
    figure: str
    chance: float
    num_fewshot: int  # in CORE


_PARTS = {
    "hellaswag": _Part("accuracy_mean_loss", 0.25, 0),
    "arc_easy": _Part("accuracy_mean_loss", 0.25, 10),
    "arc_challenge": _Part("accuracy_mean_loss", 0.25, 10),
    "piqa": _Part("accuracy_mean_loss", 0.5, 10),
    "openbookqa": _Part("accuracy_mean_loss", 0.25, 0),
    "lambada": _Part("accuracy", 0.0, 0),
    "winogrande": _Part("accuracy", 0.5, 0),
    "boolq": _Part("accuracy", 0.62, 10),  # the share of the more frequent answer
}
"""Task -> its part of CORE; hellaswag is there twice, also with ten examples."""

MISSING = (
    *("hellaswag with 10 examples", "jeopardy", "bigbench_qa_wikidata", "copa", "commonsense_qa", "winograd"),
    *("bigbench_dyck_languages", "agi_eval_lsat_ar", "bigbench_cs_algorithms", "bigbench_operators"),
    *("bigbench_repeat_copy_logic", "squad", "coqa", "bigbench_language_identification"),
)
"""Tasks of CORE that are none here."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentredAverage:
    """Holds the average and what it is made of.

    Attributes:
        value: 0 for guessing, 1 for knowing everything.
        tasks: Task -> its centred accuracy.
        other_examples: Task -> examples before each question, and in CORE, where these differ.
    """

    value: float
    tasks: Mapping[str, float]
    other_examples: Mapping[str, tuple[int, int]]

    def describe(self) -> str:
        """Says in words what it is and what it is not."""
        shown = [f"{task} {ours} ({cores})" for task, (ours, cores) in self.other_examples.items()]
        other = f"; examples before questions, and there: {', '.join(shown)}" if shown else ""
        return (
            f"centred average of {len(self.tasks)} tasks: {self.value:.4f}, the mean of (accuracy - chance) /"
            f" (1 - chance). No CORE score: DCLM's CORE has {len(MISSING)} more{other}"
        )


def centred_average(tasks: Sequence[Mapping[str, Any]]) -> CentredAverage | None:
    """Returns the average over the trees of results; None where a part of it was not measured."""
    trees = {tree["task"]: tree for tree in tasks}
    if not _PARTS.keys() <= trees.keys():
        return None
    centred = {
        kind: (trees[kind]["figures"][part.figure] - part.chance) / (1 - part.chance)
        for kind, part in _PARTS.items()
    }
    shown = {kind: trees[kind]["options"].get("num_fewshot", 0) for kind in _PARTS}
    return CentredAverage(
        value=sum(centred.values()) / len(centred),
        tasks=centred,
        other_examples={
            kind: (shown[kind], part.num_fewshot)
            for kind, part in _PARTS.items()
            if shown[kind] != part.num_fewshot
        },
    )
