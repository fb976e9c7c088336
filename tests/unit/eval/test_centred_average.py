"""The average of several tasks: 0 for guessing, 1 for knowing."""

import re

import pytest

from groundup.core.files import read_json
from groundup.eval.centred_average import MISSING, centred_average
from groundup.eval.results_file import write_results
from groundup.eval.tasks import TASKS

CHANCE = {
    "hellaswag": 0.25,
    "arc_easy": 0.25,
    "arc_challenge": 0.25,
    "piqa": 0.5,
    "openbookqa": 0.25,
    "lambada": 0.0,
    "winogrande": 0.5,
    "boolq": 0.62,
}


def trees(accuracies, **options):
    def figures(kind, value):
        return {name: value for name in TASKS[kind].figures if name.startswith("accuracy")}

    return [
        {"task": kind, "figures": figures(kind, value), "options": {"num_fewshot": 0, **options}}
        for kind, value in accuracies.items()
    ]


def test_guessing_is_nothing_and_knowing_is_one():
    assert centred_average(trees(CHANCE)).value == pytest.approx(0)
    assert centred_average(trees(dict.fromkeys(CHANCE, 1.0))).value == pytest.approx(1)


def test_it_is_the_mean_of_the_centred_accuracies():
    """PIQA halfway between chance and 1, all others at chance."""
    found = centred_average(trees({**CHANCE, "piqa": 0.75}))
    assert found.value == pytest.approx(0.5 / 8)
    assert found.tasks["piqa"] == pytest.approx(0.5)


def test_there_is_none_where_a_part_is_missing():
    for kind in CHANCE:
        assert centred_average(trees({name: x for name, x in CHANCE.items() if name != kind})) is None


def test_it_says_what_it_is_not():
    found = centred_average(trees(CHANCE))
    assert len(found.tasks) + len(MISSING) == 22
    assert "centred average of 8 tasks: 0.0000" in found.describe()
    assert re.search(r"CORE has 14 more.*piqa 0 \(10\)", found.describe())
    assert found.other_examples.keys() == {"arc_easy", "arc_challenge", "piqa", "boolq"}
    assert "arc_easy" not in centred_average(trees(CHANCE, num_fewshot=10)).other_examples


def test_it_is_written_with_the_results(tmp_path):
    write_results(tmp_path / "a.json", "m", trees(CHANCE))
    assert read_json(tmp_path / "a.json")["centred_average"]["value"] == pytest.approx(0)
    write_results(tmp_path / "b.json", "m", trees({"piqa": 1.0}))
    assert "centred_average" not in read_json(tmp_path / "b.json")
