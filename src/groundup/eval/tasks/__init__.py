"""Evaluation tasks: the union ``Task`` is their registry.

To add one, write its file here, with the source of its definition, and add its class to the union.
"""

from collections.abc import Sequence
from typing import Annotated, Any, get_args

from groundup.core.config import ByKind, config, from_tree
from groundup.core.config_sources import nearest, read_overrides
from groundup.core.errors import ConfigError
from groundup.eval.tasks.evaluation_task import EvaluationTask, Results
from groundup.eval.tasks.hellaswag import HellaSwag
from groundup.eval.tasks.lambada import Lambada
from groundup.eval.tasks.mmlu import Mmlu
from groundup.eval.tasks.perplexity import PerplexityTask
from groundup.eval.tasks.question_answering import (
    ArcChallenge,
    ArcEasy,
    BoolQ,
    OpenBookQa,
    Piqa,
    SciQ,
    WinoGrande,
)
from groundup.eval.tasks.storycloze import StoryCloze
from groundup.eval.tasks.wikitext import WikiText

Task = Annotated[
    PerplexityTask
    | Lambada
    | HellaSwag
    | StoryCloze
    | WikiText
    | Piqa
    | ArcEasy
    | ArcChallenge
    | OpenBookQa
    | BoolQ
    | SciQ
    | WinoGrande
    | Mmlu,
    ByKind,
]

TASKS: dict[str, type[EvaluationTask]] = {member.kind: member for member in get_args(get_args(Task)[0])}
"""Kind -> the class of its task."""

_OptionsOfAll: Any = config(
    type(
        "_OptionsOfAll",
        (),
        {
            "__doc__": "Every task with its options.",
            "__annotations__": dict(TASKS),
            **{kind: task() for kind, task in TASKS.items()},
        },
    )
)


def configured_tasks(
    kinds: Sequence[str], options: Sequence[str], *, where: str = "--tasks"
) -> list[EvaluationTask]:
    """Returns the tasks of these kinds with their options.

    Args:
        kinds: Of the tasks, in order.
        options: ``kind.field=value``; the value is read as YAML.
        where: What names the kinds, for messages.

    Raises:
        ConfigError: There is no such task or option, or an option has a wrong value or no effect.
    """
    for kind in kinds:
        if kind not in TASKS:
            raise ConfigError(
                f"{kind!r} is no task; there are {', '.join(TASKS)}",
                where=where,
                fix=nearest(kind, TASKS),
            )
    tree, origins = read_overrides(options)
    tasks = from_tree(_OptionsOfAll, tree, origins)
    if idle := [option for option in options if option.partition(".")[0] not in kinds]:
        raise ConfigError(
            f"no effect on {where} {','.join(kinds)}",
            where=f"command line ({' '.join(idle)})",
            fix="Leave it out, or name its task.",
        )
    return [getattr(tasks, kind) for kind in dict.fromkeys(kinds)]


__all__ = [
    "TASKS",
    "ArcChallenge",
    "ArcEasy",
    "BoolQ",
    "EvaluationTask",
    "HellaSwag",
    "Lambada",
    "Mmlu",
    "OpenBookQa",
    "PerplexityTask",
    "Piqa",
    "Results",
    "SciQ",
    "StoryCloze",
    "Task",
    "WikiText",
    "WinoGrande",
    "configured_tasks",
]
