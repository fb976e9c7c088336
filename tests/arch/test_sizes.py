"""Files, functions and rooms stay of a size that a reader takes in at once."""

import ast
import collections
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "groundup"
FILES = sorted(SOURCE.rglob("*.py"))

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60  # without its docstring

BUDGETS = {
    "__init__.py": 20,
    "__main__.py": 120,
    "checkpoint": 9220,
    "cli": 7470,
    "core": 2520,
    "corpus": 9740,
    "deepspeed": 740,
    "eval": 3050,
    "inference": 2990,
    "launch": 1970,
    "finetune": 3500,
    "megatron": 2550,
    "models": 1540,
    "parallel": 2110,
    "plan": 4410,
    "rehearsal": 570,
    "serve": 2200,
    "report": 2760,
    "tokens": 8220,
    "train": 5650,
    "verify": 1690,
}
"""Lines of each room; docs/decisions/006-room-budgets.md says when it may grow, and which shall fall."""

SHARED_NAMES = {
    "__init__.py",
    "config.py",  # of a run, of Hugging Face, and what a config is
    "errors.py",  # of users, and of ranks
    "gpt2.py",  # the model, and its tokenizer
    "perplexity.py",  # the measure, and the task that asks for it
    "shuffle.py",  # of documents, and of samples
}
"""Names that two rooms have for what both must be called."""

VERBS = ("cli", "verify")
"""Rooms whose files are named by the thing of another room that they serve."""


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert _length(node) <= MAX_FUNCTION_LINES, node.name


def test_rooms_keep_their_budgets():
    sizes = collections.Counter()
    for path in FILES:
        sizes[path.relative_to(SOURCE).parts[0]] += len(path.read_text().splitlines())
    assert sizes.keys() == BUDGETS.keys()
    assert not {room: (size, BUDGETS[room]) for room, size in sizes.items() if size > BUDGETS[room]}


def test_the_decision_page_names_the_same_budgets():
    page = (SOURCE.parents[1] / "docs/decisions/006-room-budgets.md").read_text()
    rows = re.findall(r"^\| (\w+) \| [\d,]+ \| ([\d,]+) \|", page, re.MULTILINE)
    named = {room: int(budget.replace(",", "")) for room, budget in rows}
    assert named == {room: budget for room, budget in BUDGETS.items() if not room.startswith("__")}


def test_no_two_files_share_a_name_without_need():
    names = collections.Counter(path.name for path in FILES if path.relative_to(SOURCE).parts[0] not in VERBS)
    assert {name for name, count in names.items() if count > 1} == SHARED_NAMES


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    docstring = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(function) else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring
