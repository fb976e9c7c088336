"""Rewards: checked answers, the user's functions, and what is wrong with them."""

import math
from pathlib import Path

import pytest

from groundup.core.errors import ConfigError, DataError
from groundup.finetune.rewards import Rewards

FILE = """
from __future__ import annotations

import dataclasses
import sys

import helper_of_rewards


@dataclasses.dataclass
class Rule:
    worth: float = 1.0


def length(prompt, completion, record):
    return helper_of_rewards.half(len(completion)) + len(record["prompt"]) * 0


def divides(prompt, completion, record):
    return 1 / record["zero"]


def nothing(prompt, completion, record):
    return None


def infinite(prompt, completion, record):
    return float("inf")


def leaves(prompt, completion, record):
    sys.exit(f"worth {Rule().worth}")


def yes(prompt, completion, record):
    return "yes"


def two(prompt, completion):
    return 1
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "helper_of_rewards.py").write_text("def half(x):\n    return x / 2\n")
    (folder / "mine.py").write_text(FILE)
    return folder / "mine.py"


@pytest.mark.parametrize(
    ("name", "completion", "answer", "value"),
    [
        ("exact", " 12\n", "12", 1),
        ("exact", "12.", 12, 0),
        ("number", "3 and 4 make 7.", "7", 1),
        ("number", "so 1,234.50 in all", 1234.5, 1),
        ("number", "-7", "7", 0),
        ("number", "none", "7", 0),
        ("number", "#### 72", "40 + 32 = 72\n#### 72", 1),
        ("regex", "thinking <a> 5 </a> or <a>7</a>", "7", 1),
        ("regex", "<a>5</a>", "7", 0),
        ("regex", "7", "7", 0),
    ],
)
def test_a_checked_answer(name: str, completion: str, answer: object, value: float) -> None:
    rewards = Rewards([name], pattern="<a>(.*?)</a>", answer_field="solution")
    scores = rewards.score("?", completion, {"solution": answer}, where="p.jsonl:1")
    assert (scores.each, scores.total) == ({name: value}, value)


def test_functions_are_weighed(file: Path) -> None:
    rewards = Rewards([f"{file}:length", "exact"], weights=[0.5, -2])
    scores = rewards.score("?", "12", {"prompt": "?", "answer": "12"}, where="p.jsonl:1")
    assert scores.each == {f"{file}:length": 1, "exact": 1}
    assert scores.total == -1.5


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("divides", r"raised ZeroDivisionError: division by zero \(.*mine\.py:20\)"),
        ("nothing", "returned None, which is not a finite number"),
        ("infinite", "returned inf, which is not a finite number"),
        ("leaves", "raised SystemExit: worth 1.0"),
        ("yes", "returned 'yes', which is not a finite number"),
    ],
)
def test_a_bad_reward_is_named_or_skipped(file: Path, function: str, message: str) -> None:
    name, record = f"{file}:{function}", {"zero": 0}
    with pytest.raises(DataError, match=message) as raised:
        Rewards([name]).score("?", "what it wrote", record, where="p.jsonl:3")
    for part in (f"stage.reward {name}", "p.jsonl:3", "'what it wrote'", "stage.bad_rewards=skip"):
        assert part in str(raised.value)
    scores = Rewards([name], bad="skip").score("?", "what it wrote", record, where="p.jsonl:3")
    assert math.isnan(scores.each[name])
    assert math.isnan(scores.total)


def test_a_check_without_an_answer_is_named() -> None:
    with pytest.raises(DataError, match="needs the field 'answer'"):
        Rewards(["exact"]).score("?", "", {}, where="p.jsonl:3")
    with pytest.raises(DataError, match="needs a number"):
        Rewards(["number"]).score("?", "1", {"answer": "many"}, where="p.jsonl:3")


def test_what_cannot_be_a_reward_is_refused_before_the_run(file: Path) -> None:
    broken = file.with_name("broken.py")
    broken.write_text("import no_such_module\n")
    program = file.with_name("program.py")
    program.write_text("raise SystemExit(0)\n")
    for name, message in {
        "exakt": "neither one of exact, regex, number nor",
        "nowhere.py:f": "no file nowhere.py",
        f"{file}:missing": "no function missing; it has length, divides",
        f"{file}:two": "cannot be called with",
        f"{broken}:f": "cannot be imported: ModuleNotFoundError",
        f"{program}:f": "cannot be imported: SystemExit",
        "regex": "needs a pattern",
    }.items():
        with pytest.raises(ConfigError, match=message):
            Rewards([name])
    with pytest.raises(ConfigError, match="no regular expression"):
        Rewards(["regex"], pattern="(")
