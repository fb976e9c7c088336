"""Results on disk, the paired test, and what was published."""

import dataclasses
import math

import pytest

from groundup.core.errors import DataError
from groundup.core.files import read_json, write_json
from groundup.eval.results_file import compare_results, published, results_tree, write_results
from groundup.eval.tasks import TASKS, HellaSwag, Lambada, WikiText
from tests.task_files import write_task_file
from tests.tiny import tiny_model


def results_of(folder, name, data, tasks):
    loaded = tiny_model(name)
    trees = [
        results_tree(task, task.measure(loaded, [path]), data=[path], seconds=1.0)
        for task, path in zip(tasks, data, strict=True)
    ]
    write_results(folder / f"{name}.json", "tiny", trees)
    return folder / f"{name}.json"


def edited(path, values):
    """The same results with other values of one figure."""
    tree = read_json(path)
    for item, value in zip(tree["tasks"][0]["items"], values, strict=True):
        item["values"] = {"accuracy": value}
    write_json(path.with_name(f"{values}.json"), tree)
    return path.with_name(f"{values}.json")


def test_every_item_is_written_with_its_log_likelihoods(tmp_path):
    path = write_task_file("hellaswag", tmp_path, count=4)
    tree = read_json(results_of(tmp_path, "gpt2", [path], [HellaSwag()]))
    (task,) = tree["tasks"]
    measured = HellaSwag().measure(tiny_model("gpt2"), [path])
    assert task["figures"] == measured.figures
    for item, ours in zip(task["items"], measured.items, strict=True):
        assert item["where"] == ours.where
        assert [score["logprob"] for score in item["scores"]] == [score.logprob for score in ours.scores]
        assert [score["num_tokens"] for score in item["scores"]] == [s.num_tokens for s in ours.scores]


def test_two_models_are_compared_item_by_item(tmp_path):
    tasks = [Lambada(), HellaSwag()]
    data = [write_task_file(task.kind, tmp_path, count=8) for task in tasks]
    first, second = (results_of(tmp_path, name, data, tasks) for name in ("gpt2", "llama"))
    found = {(row.task, row.figure): row for row in compare_results(first, second)}
    assert {task for task, _ in found} == {"lambada", "hellaswag"}
    row = found["lambada", "perplexity"]
    pairs = [
        [item["values"]["perplexity"] for item in read_json(path)["tasks"][0]["items"]]
        for path in (first, second)
    ]
    differences = [b - a for a, b in zip(*pairs, strict=True)]
    mean = sum(differences) / 8
    error = math.sqrt(sum((value - mean) ** 2 for value in differences) / 7 / 8)
    assert row.second - row.first == pytest.approx(mean)
    assert row.standard_error == pytest.approx(error)
    assert row.p_value == pytest.approx(math.erfc(abs(mean / error) / math.sqrt(2)))
    for row in compare_results(first, first):
        assert (row.first, row.p_value, row.standard_error) == (row.second, 1.0, 0.0)


def test_right_and_wrong_are_compared_exactly(tmp_path):
    """Nine items become right and one wrong: 11 of 2^10 ways are as uneven, on either side."""
    path = write_task_file("hellaswag", tmp_path, count=12)
    base = results_of(tmp_path, "gpt2", [path], [HellaSwag()])
    first, second = edited(base, [0] * 9 + [1, 1, 0]), edited(base, [1] * 9 + [0, 1, 0])
    (row,) = compare_results(first, second)
    assert row.p_value == pytest.approx(2 * 11 / 2**10)
    assert (row.first, row.second) == (pytest.approx(2 / 12), pytest.approx(10 / 12))


def test_nats_are_compared_by_a_normal_test(tmp_path):
    """Differences 1, 2, 3, 4: mean 2.5, standard error sqrt(5 / 3 / 4), so z is 3.873 and p 1.075e-4."""
    path = write_task_file("hellaswag", tmp_path, count=4)
    base = results_of(tmp_path, "gpt2", [path], [HellaSwag()])
    (row,) = compare_results(edited(base, [0, 0, 0, 0]), edited(base, [1, 2, 3, 4]))
    assert row.standard_error == pytest.approx(0.645497)
    assert row.p_value == pytest.approx(1.0751e-4, rel=1e-3)


def test_items_that_one_model_cannot_score_are_left_out_for_both(tmp_path):
    path = write_task_file("hellaswag", tmp_path, count=6)
    first = results_of(tmp_path, "gpt2", [path], [HellaSwag()])
    tree = read_json(first)
    gone = tree["tasks"][0]["items"].pop(2)
    tree["tasks"][0]["skipped"] = {gone["where"]: "the continuation has 80 tokens"}
    second = tmp_path / "second.json"
    write_json(second, tree)
    for pair in ((first, second), (second, first)):
        assert {row.num_items for row in compare_results(*pair)} == {5}


def test_one_file_in_two_folders_is_one_file(tmp_path):
    path = write_task_file("hellaswag", tmp_path, count=3)
    first = results_of(tmp_path, "gpt2", [path], [HellaSwag()])
    (tmp_path / "there").mkdir()
    second = results_of(tmp_path, "llama", [path.rename(tmp_path / "there" / path.name)], [HellaSwag()])
    assert {row.num_items for row in compare_results(first, second)} == {3}


def test_what_cannot_be_compared_is_refused(tmp_path):
    path = write_task_file("hellaswag", tmp_path, count=3)
    first = results_of(tmp_path, "gpt2", [path], [HellaSwag()])
    path.write_text("\n".join(path.read_text().splitlines()[:2]))
    second = results_of(tmp_path, "llama", [path], [HellaSwag()])
    with pytest.raises(DataError, match="the items of hellaswag are not the same"):
        list(compare_results(first, second))
    write_task_file("hellaswag", tmp_path, count=3)
    other = HellaSwag(prompt="plain", batch_size=2)
    second = results_of(tmp_path, "llama", [path], [other])
    with pytest.raises(DataError, match=r"measured otherwise \(prompt=lm-eval, prompt=plain\)"):
        list(compare_results(first, second))
    third = results_of(tmp_path, "llama-grouped-tied", [write_task_file("lambada", tmp_path)], [Lambada()])
    with pytest.raises(DataError, match="no task with items in common"):
        list(compare_results(first, third))
    write_json(tmp_path / "x.json", {"kind": "other"})
    with pytest.raises(DataError, match="holds no results of groundup eval"):
        list(compare_results(first, tmp_path / "x.json"))


@pytest.mark.parametrize("task", [task() for task in TASKS.values()], ids=list(TASKS))
def test_published_figures_are_of_figures_that_the_task_has(task):
    for figure, rows in published(task).items():
        assert figure in task.figures
        for row in rows:
            assert row.keys() - {"options"} == {"model", "value", "source"}
            assert row.get("options", {}).keys() <= {field.name for field in dataclasses.fields(task)}


def test_published_figures_hold_for_their_protocol_only():
    assert [row["value"] for row in published(HellaSwag())["accuracy_norm"]] == [0.3114, 0.5089]
    assert published(HellaSwag(prompt="plain"))["accuracy_norm"] == []
    assert 0.2955 in [row["value"] for row in published(HellaSwag(prompt="plain"))["accuracy_mean_loss"]]
    assert published(Lambada())["accuracy"][0]["value"] == 0.3256
    few = HellaSwag(num_fewshot=5, fewshot_data="x.jsonl")
    others = (few, Lambada(detokenize="wikitext"), WikiText(stride=0), WikiText(detokenize=False))
    for task in others:
        assert not any(published(task).values())
    assert published(HellaSwag(batch_size=3, limit=7)) == published(HellaSwag())
    assert published(WikiText())["adjusted_perplexity"][0]["value"] == 37.5
