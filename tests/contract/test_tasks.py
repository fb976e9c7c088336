"""What every evaluation task must do: take its options as words, name its figures, stand in the help."""

import dataclasses

import orjson
import pytest

from groundup.cli.app import build_app
from groundup.core.config import to_dict
from groundup.core.errors import ConfigError
from groundup.eval.tasks import TASKS, configured_tasks
from tests.instances import INSTANCES
from tests.tiny import tiny_model

TASKS_UNDER_TEST = [instance for task in TASKS.values() for instance in INSTANCES[task]]


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
    path = tmp_path / "texts.jsonl"
    path.write_bytes(
        b"\n".join(orjson.dumps({"text": f"{word} and the ebb"}) for word in ("tide", "sea", "flow"))
    )
    results = task.measure(tiny_model("gpt2"), [path])
    assert list(results) == list(task.figures)
    assert any(figure.better for figure in task.figures.values())


def test_the_help_tells_of_every_task_and_option(capsys):
    with pytest.raises(SystemExit):
        build_app()(["eval", "--help"])
    words = set(capsys.readouterr().out.replace(",", " ").replace(".", " ").split())
    for kind, task in TASKS.items():
        assert {kind, *(field.name for field in dataclasses.fields(task))} - {"kind"} <= words
