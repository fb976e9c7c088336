"""The quickstart's choice of steps, and what it shows."""

import logging

import pytest

from groundup.cli import quickstart as module
from groundup.cli.quickstart import quickstart, steps_within
from groundup.train.loop import seconds_of_step
from tests.runs import losses, make_config, make_data, run

SMALL = (
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.num_heads=2",
    "model.ffn_size=64",
    "data.sequence_length=32",
    "validation.interval=0",
    "device=cpu",
)


@pytest.mark.parametrize(
    ("of_step", "num_steps"), [(0.01, 2000), (0.1, 1700), (0.2, 800), (0.34, 500), (0.5, 400), (30.0, 400)]
)
def test_steps_are_as_many_as_there_is_time_for(of_step, num_steps):
    assert steps_within(175, of_step, at_most=2000) == num_steps


def test_a_run_that_begins_with_fewer_is_left_so():
    assert steps_within(175, 0.1, at_most=20) == 20


def test_the_chosen_number_stays_and_several_completions_are_shown(tmp_path, monkeypatch, capsys, caplog):
    text = tmp_path / "story.txt"
    text.write_text(
        "\n\n".join(f"On day {i} the cat met dog {i * 7}. They spoke of fish {i * 3}." for i in range(900))
    )
    monkeypatch.setattr(module, "_TRAINING_SECONDS", 0)
    monkeypatch.setattr(logging.getLogger("groundup"), "propagate", True)
    caplog.set_level(logging.INFO, "groundup")
    for fewest in (4, 6):  # the second time the machine would be quicker
        monkeypatch.setattr(module, "_FEWEST_STEPS", fewest)
        quickstart(*SMALL, corpus=text, out=tmp_path / "out", prompt="On day 3")
    first, second = capsys.readouterr().out.split("\n[1] ")[1:]
    assert first == second
    shown = [
        part for part in f"[1] {first}".split("\n\nValidation loss")[0].split("\n\n[") if "On day 3" in part
    ]
    assert len(shown) == 3
    assert len({part.split("]", 1)[1] for part in shown}) == 3
    assert " tokens/s measured: 4 steps in about " in caplog.text
    assert "out/run has 4 steps" in caplog.text
    assert "step 4/4" in caplog.text


def test_measuring_leaves_nothing_behind(tmp_path):
    data = make_data(tmp_path)
    alone = losses(run(make_config(data, tmp_path / "alone")))
    config = make_config(data, tmp_path / "run")
    assert seconds_of_step(config, measured_seconds=0.0) > 0
    assert not config.run_dir.exists()
    assert logging.getLogger("groundup").level < logging.WARNING
    assert losses(run(config)) == alone
