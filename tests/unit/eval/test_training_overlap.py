"""Evaluation says which of its items a model was trained on, by checkpoint, data set and corpus."""

import dataclasses
import json
from pathlib import Path

import pytest

from groundup.cli.app import run
from groundup.core.executor.tasks import SerialRunner
from groundup.corpus.decontaminate import Decontaminate
from groundup.corpus.import_sources import Import
from groundup.corpus.ngram_overlap import Overlap
from groundup.corpus.pipeline import run_recipe
from groundup.corpus.recipe import Recipe
from groundup.eval.tasks import HellaSwag, Lambada
from groundup.eval.training_overlap import UnknownOverlap, overlap_of_task, overlaps_of_model
from groundup.tokens.dataset.merge import merge_tokens
from groundup.tokens.tokenize import build_tokens
from tests.runs import make_config
from tests.runs import run as train
from tests.task_files import write_task_file
from tests.tiny import tiny_model, tiny_tokenizer

PLAIN = "Nothing of a task stands in this sentence, which is here for its length alone. "


def make_corpus(folder: Path, name: str, texts: list[str], against: Path | None, **settings) -> Path:
    """A corpus of some texts, compared with a file of items of its task."""
    source = folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    stages = [Import(sources=(source,))]
    if against:
        task = against.name.partition("_")[0]
        stages.append(Decontaminate(against=(task,), data=(against,), **settings))
    run_recipe(Recipe(stages=tuple(stages)), folder / name, SerialRunner())
    return folder / name


@pytest.fixture
def passages(tmp_path) -> Path:
    """Ten passages of LAMBADA."""
    return write_task_file("lambada", tmp_path, count=10)


@pytest.fixture
def leaky(tmp_path, passages) -> Path:
    """A corpus that holds the third and the fifth of them, and was compared with all."""
    texts = [json.loads(line)["text"] for line in passages.read_text().splitlines()]
    documents = [PLAIN * 9, f"{PLAIN * 9}{texts[2]}. {PLAIN * 9}", texts[4]]
    return make_corpus(tmp_path, "leaky", documents, passages, report_only=True)


def test_scores_are_told_without_the_items_that_overlap(leaky, passages):
    results = Lambada().measure(tiny_model("gpt2"), [passages])
    found = overlap_of_task(Lambada(), results, [passages], overlaps_of_model(Path("any"), [leaky]))
    assert (found.items, found.cut, found.max_ngram) == (10, 0, 13)
    assert found.places == (f"{passages}:3", f"{passages}:5")
    values = [item.values["perplexity"] for item in results.items]
    dirty = (values[2] + values[4]) / 2
    clean = (sum(values) - values[2] - values[4]) / 8
    assert found.overlapping["perplexity"] == pytest.approx(2.718281828459045**dirty)
    assert found.clean["perplexity"] == pytest.approx(2.718281828459045**clean)
    assert found.clean.keys() == Lambada.figures.keys() - {"right", "passages"}


def test_what_was_cut_out_is_told_apart_from_what_is_left(tmp_path, passages):
    texts = [json.loads(line)["text"] for line in passages.read_text().splitlines()]
    documents = [PLAIN * 9, texts[0], *[texts[1]] * 5]
    corpus = make_corpus(tmp_path, "cut", documents, passages, overlap=Overlap(common_count=3))
    results = Lambada().measure(tiny_model("gpt2"), [passages])
    found = overlap_of_task(Lambada(), results, [passages], overlaps_of_model(Path("any"), [corpus]))
    assert found.cut + len(found.places) == 2 and found.cut >= 1
    few = dataclasses.replace(Lambada(), limit=1).measure(tiny_model("gpt2"), [passages])
    found = overlap_of_task(Lambada(), few, [passages], overlaps_of_model(Path("any"), [corpus]))
    assert (found.items, found.places, found.cut, found.clean) == (1, (), 1, {})


def test_another_file_than_was_compared_gets_no_figure(tmp_path, leaky, passages):
    known = overlaps_of_model(Path("any"), [leaky])
    passages.write_text(passages.read_text().replace("sea", "see", 1))
    results = Lambada().measure(tiny_model("gpt2"), [passages])
    with pytest.raises(UnknownOverlap, match=r"lambada_test\.jsonl is not the file that it was"):
        overlap_of_task(Lambada(), results, [passages], known)
    other = write_task_file("hellaswag", tmp_path)
    results = HellaSwag().measure(tiny_model("gpt2"), [other])
    with pytest.raises(UnknownOverlap, match=r"it was not compared with .*hellaswag_test\.jsonl"):
        overlap_of_task(HellaSwag(), results, [other], known)


def test_several_data_sets_must_all_be_known(tmp_path, leaky, passages):
    clean = make_corpus(tmp_path, "clean", [PLAIN * 20], passages, report_only=True)
    raw = make_corpus(tmp_path, "raw", [PLAIN * 30], None)
    for corpus in (leaky, clean, raw):
        build_tokens([corpus], tmp_path / "tokens" / corpus.name, tiny_tokenizer(), workers=1)
    prefixes = [tmp_path / "tokens" / f"{name}_text_document" for name in ("leaky", "clean", "raw")]
    (joint,) = overlaps_of_model(Path("any"), prefixes[:2])
    assert joint.left == (":3", ":5")
    assert overlaps_of_model(Path("any"), [prefixes[1]])[0].left == ()
    with pytest.raises(UnknownOverlap, match=r"raw_text_document was not compared with evaluation items"):
        overlaps_of_model(Path("any"), prefixes)
    merge_tokens(prefixes[:2], tmp_path / "both")
    assert overlaps_of_model(Path("any"), [tmp_path / "both"]) == (joint,)
    merge_tokens(prefixes, tmp_path / "three")
    with pytest.raises(UnknownOverlap, match="three was not compared"):
        overlaps_of_model(Path("any"), [tmp_path / "three"])


def measured(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        run(["eval", *words, "--device", "cpu"])
    assert not ended.value.code
    return capsys.readouterr().out


def test_a_run_knows_what_it_was_trained_on(tmp_path, leaky, passages, capsys):
    build_tokens([leaky], tmp_path / "data", tiny_tokenizer(), workers=1)
    data, run_dir = tmp_path / "data_text_document", tmp_path / "run"
    train(make_config(data, run_dir, "num_steps=1", "data.split=100,0,0"))
    command = [str(run_dir), "--tasks", "lambada", "--data", str(passages)]
    shown = measured([*command, "--out", str(tmp_path / "a.json")], capsys)
    assert "2 of 10 items overlap the training data by 13 words\n" in shown
    assert "without" in shown and "overlapping" in shown
    (tree,) = json.loads((tmp_path / "a.json").read_text())["tasks"]
    assert tree["overlap"]["places"] == [f"{passages}:3", f"{passages}:5"]
    assert tree["overlap"]["clean"].keys() == tree["overlap"]["overlapping"].keys() >= {"accuracy"}
    build_tokens([passages], tmp_path / "data", tiny_tokenizer(), workers=1)  # other tokens under its name
    shown = measured(command, capsys)
    assert f"not known: {data} has changed since the training" in shown
    line = json.loads(measured([*command, "--trained-on", str(leaky), "--json"], capsys))
    assert len(line["overlap"]["places"]) == 2
    data.with_suffix(".idx").unlink()
    line = json.loads(measured([*command, "--json"], capsys))
    assert line["overlap"]["unknown"].startswith("its data cannot be opened: ")
