"""What every evaluation task must do: take its options, name its figures, know right from wrong."""

import dataclasses
import itertools
import re

import numpy as np
import orjson
import pytest
import torch
from torch import nn

from groundup.cli.app import build_app
from groundup.core.config import to_dict
from groundup.core.errors import ConfigError, DataError
from groundup.eval.tasks import TASKS, Lambada, configured_tasks
from groundup.eval.tasks.multiple_choice import MultipleChoice
from groundup.eval.text_requests import text_request
from groundup.models.masks import BranchMask
from tests.instances import INSTANCES
from tests.task_files import write_task_file
from tests.tiny import tiny_model

TASKS_UNDER_TEST = [instance for task in TASKS.values() for instance in INSTANCES[task]]
QUESTIONS = [task for task in TASKS_UNDER_TEST if isinstance(task, MultipleChoice)]


class Oracle(nn.Module):
    """Knows some texts by heart: after each beginning of one comes its next token, after others any."""

    def __init__(self, vocab_size, texts):
        super().__init__()
        self.head = nn.Linear(vocab_size, vocab_size, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(100 * torch.eye(vocab_size))
        self.next = {text[:n]: text[n] for text in map(tuple, texts) for n in range(1, len(text))}

    def forward(self, tokens_BT, *, positions_BT=None, mask=None):
        hidden = torch.zeros(*tokens_BT.shape, self.head.in_features)
        for row, end in itertools.product(*map(range, tokens_BT.shape)):
            before = tokens_BT[row, : end + 1]
            seen = tokens_BT[row][mask.mask_B1TS[row, 0, end]] if isinstance(mask, BranchMask) else before
            if (known := self.next.get(tuple(seen.tolist()))) is not None:
                hidden[row, end, known] = 1
        return hidden


def oracle(loaded, pairs):
    requests = [text_request(loaded, *pair) for pair in pairs]
    texts = [np.concatenate((request.context, request.continuation)).tolist() for request in requests]
    config = dataclasses.replace(loaded.config, max_sequence_length=4096)
    return dataclasses.replace(loaded, config=config, model=Oracle(300, texts))


@pytest.mark.parametrize("task", TASKS_UNDER_TEST, ids=repr)
def test_each_option_is_taken_from_a_command_line(task):
    values = {name: value for name, value in to_dict(task).items() if name != "kind"}
    words = [f"{task.kind}.{name}={orjson.dumps(value).decode()}" for name, value in values.items()]
    assert configured_tasks([task.kind], words) == [task]


@pytest.mark.parametrize("kind", TASKS)
def test_an_option_that_is_not_there_is_answered_by_the_nearest(kind):
    for field in dataclasses.fields(TASKS[kind]):
        name = field.name
        with pytest.raises(
            ConfigError, match=f"unknown key {kind}.{name}x. Did you mean '{name}'"
        ) as refusal:
            configured_tasks([kind], [f"{kind}.{name}x=1"])
        assert f"command line ({kind}.{name}x=1)" in str(refusal.value)


@pytest.mark.parametrize("task", TASKS_UNDER_TEST, ids=repr)
def test_a_task_returns_the_figures_that_it_names(task, tmp_path):
    results = task.measure(tiny_model("gpt2"), [write_task_file(task.kind, tmp_path)])
    assert list(results.figures) == list(task.figures)
    assert any(figure.better for figure in task.figures.values())
    for item in results.items:
        assert item.values.keys() <= task.figures.keys()
        assert item.scores and item.target


@pytest.mark.parametrize("task", QUESTIONS, ids=repr)
def test_who_knows_the_answers_scores_one_and_who_knows_wrong_ones_none(task, tmp_path):
    path, loaded = write_task_file(task.kind, tmp_path), tiny_model("gpt2")
    preamble = task.preamble("boating") if task.kind == "mmlu" else ""
    for shift, expected in ((0, 1.0), (1, 0.0)):
        known = []
        for question in task.questions(path):
            pick = (question.label + shift) % len(question.choices)
            known.append((preamble + question.contexts[pick], question.continuations[pick]))
        figures = task.measure(oracle(loaded, known), [path]).figures
        assert {value for name, value in figures.items() if "accuracy" in name} == {expected}


@pytest.mark.parametrize("kind", sorted({task.kind for task in QUESTIONS} - {"sciq"}))
def test_who_knows_nothing_scores_chance(kind, tmp_path):
    """The labels are drawn by chance, so within 4.5 standard deviations of it, whatever the weights."""
    task, count = TASKS[kind](), 150
    path = write_task_file(kind, tmp_path, count=count, seed=1)
    choices = len(next(iter(task.questions(path))).choices)
    figures = task.measure(tiny_model("llama"), [path]).figures
    spread = (1 / choices * (1 - 1 / choices) / count) ** 0.5
    for name in ("accuracy", "accuracy_norm"):
        assert abs(figures.get(name, 1 / choices) - 1 / choices) < 4.5 * spread


def test_who_knows_the_last_words_scores_one(tmp_path):
    path, loaded = write_task_file("lambada", tmp_path), tiny_model("gpt2")
    texts = [orjson.loads(line)["text"].rpartition(" ") for line in path.read_bytes().splitlines()]
    figures = (
        Lambada()
        .measure(oracle(loaded, [(context, f" {word}") for context, _, word in texts]), [path])
        .figures
    )
    assert figures["accuracy"] == figures["accuracy_last_token"] == figures["accuracy_no_stop_words"] == 1
    assert figures["perplexity"] == pytest.approx(1, abs=1e-6)
    figures = (
        Lambada().measure(oracle(loaded, [(context, " xyz") for context, _, _ in texts]), [path]).figures
    )
    assert figures["accuracy"] == 0


@pytest.mark.parametrize("task", QUESTIONS, ids=repr)
def test_a_file_of_another_task_is_refused_with_its_fields(task, tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text('{"colour": "blue", "size": 3}\n')
    with pytest.raises(DataError, match=r"other\.jsonl:1: the item has no field '\w+'; it has colour, size"):
        list(task.questions(path))


def test_the_help_tells_of_every_task_and_option(capsys):
    with pytest.raises(SystemExit):
        build_app()(["eval", "--help"])
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    for kind, task in TASKS.items():
        assert {kind, *(field.name for field in dataclasses.fields(task))} - {"kind"} <= words
