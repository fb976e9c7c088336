"""Evaluation tasks: this union is their registry.

A task is a ``@config`` class with a ``kind`` and ``measure(loaded, data) -> Results``. To add one, write
its file here, with the source of its definition, and add its class to ``Task``.
"""

from typing import Annotated, get_args

from groundup.core.config import ByKind
from groundup.eval.tasks.lambada import Lambada
from groundup.eval.tasks.perplexity import PerplexityTask

Task = Annotated[PerplexityTask | Lambada, ByKind]

TASKS = {member.kind: member for member in get_args(get_args(Task)[0])}
"""Kind -> the class of its task."""

Results = dict[str, float | int]
"""Name of a figure -> its value, in the order in which they are shown."""

__all__ = ["TASKS", "Lambada", "PerplexityTask", "Results", "Task"]
