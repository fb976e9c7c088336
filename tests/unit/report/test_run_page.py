"""The page of a run shows what its folder holds, whatever is missing there; it asks nobody for anything."""

import base64
import hashlib
import json
import logging
import re

import orjson
import pytest

from groundup.cli.train import run_training
from groundup.core.errors import DataError
from groundup.core.files import write_json
from groundup.report import run_page
from groundup.report.run_page import write_run_page
from groundup.report.run_plots import events_of, figure_plots, loss_plot
from groundup.report.run_records import names_of, read_run, thinned
from tests.run_folders import write_run_folder
from tests.runs import make_config, make_data
from tests.unit.report.test_corpus_page import Page


def shown(markup):
    """The text of each section, and what the script draws."""
    page = Page(re.sub(r"<script.*?</script>", "", markup, flags=re.DOTALL))
    return page.sections, json.loads(re.search(r'id="figures">(.*?)</script>', markup, re.DOTALL)[1])


@pytest.fixture
def page(tmp_path):
    """Writes the page of runs; returns its sections and figures."""

    def page(*folders, **options):
        return shown(write_run_page(folders, tmp_path / "page.html", **options).read_text())

    return page


def test_the_curves_are_the_records(tmp_path, page):
    folder = write_run_folder(tmp_path / "run")
    sections, figures = page(folder)
    plots = {plot["title"]: plot["curves"] for plot in figures["plots"]}
    assert list(plots) == [
        *("Loss in nats", "Gradient norm", "Learning rate", "Tokens a second", "Memory in GB"),
        "lambada accuracy",  # neither MFU, batch size nor loss scale, which never change
    ]
    training, validation = plots["Loss in nats"]
    assert training["step"] == list(range(1, 41)) and training["y"][13] is None
    assert training["y"][0] == pytest.approx(5 - 1 / 20 + 0.0841471, rel=1e-5)
    assert training["tokens"] == [36000 * step for step in range(1, 41)]
    # 20 steps of 36,000 tokens at 3,600 tokens/s take 10 seconds each, the others 5.
    assert training["hours"][19] == pytest.approx(200 / 3600, abs=1e-5)
    assert training["hours"][-1] == pytest.approx(300 / 3600, abs=1e-5)
    assert validation["step"] == [10, 20, 30, 40] and validation["y"] == [4.5, 4.0, 3.5, 3.0]
    assert validation["tokens"] == [360000 * times for times in (1, 2, 3, 4)]
    assert "finished" in sections[""] and "1.44M" in sections[""]
    assert re.search(r"lambada\s+accuracy\s+0.4\s+40\s+while training", sections["evaluation"])
    assert "Once <b>upon</b> 40</script>" in sections["samples"]
    assert "There is no checkpoint." in sections["checkpoints"]


def test_restarts_and_spikes_are_marks_and_a_table(tmp_path, page):
    run = read_run(write_run_folder(tmp_path / "run"), "run")
    found = [(event.step, event.kind) for event in events_of(0, run)]
    assert found == [(16, "restart"), (13, "skip"), (19, "rollback"), (30, "overflow")]
    sections, figures = page(run.folder)
    assert [(mark["step"], mark["kind"]) for mark in figures["marks"]] == sorted(found)
    assert re.search(
        r"13\s+skip\s+the loss is far above: loss 9.5, gradient norm 44", sections["restarts-and-spikes"]
    )


def test_the_page_asks_nobody_and_runs_no_script_but_its_own(tmp_path):
    folder = write_run_folder(tmp_path / "run")
    markup = write_run_page([folder], tmp_path / "page.html").read_text()
    scripts = re.findall(r"<script>(.*?)</script>", markup, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    allowed = re.search(r"script-src ([^\"]*)\"", markup)[1]
    assert len(scripts) == 2 and allowed == " ".join(f"'sha256-{each}'" for each in hashes)
    assert "default-src 'none'" in markup and "MIT License" in markup  # of uPlot, as it asks for
    assert not re.search(r"url\(|@import|\ssrc=|<link|<img|<iframe|fetch\(|XMLHttpRequest|WebSocket", markup)
    assert "Once <b>" not in markup and '</script>"' not in markup
    page = Page(re.sub(r"<script.*?</script>", "", markup, flags=re.DOTALL))
    plots = [figure for figure in page.of("figure") if "data-plot" in figure]
    canvases = [div for div in page.of("div") if div.get("class") == "canvas"]
    assert len(plots) == len(canvases) == 6
    assert all(div["tabindex"] == "0" and div["aria-label"] for div in canvases)
    assert len(page.of("table")) >= len(plots) and page.of("a")[0]["href"] == "#main"


def test_runs_side_by_side_and_what_differs_between_them(tmp_path, page):
    one = write_run_folder(tmp_path / "one/run")
    two = write_run_folder(tmp_path / "two/run", optimizer={"lr": 3e-3})
    sections, figures = page(one, two)
    assert figures["runs"] == ["one/run", "two/run"] == names_of([one, two])
    assert [curve["name"] for curve in figures["plots"][0]["curves"]] == [
        *("one/run, training", "one/run, validation", "two/run, training", "two/run, validation")
    ]
    differing = sections["settings"].partition("All settings")[0]
    assert re.search(r"optimizer\.lr\s+0\.001\s+0\.003", differing) and "vocab_size" not in differing
    assert "bits per byte" not in sections["curves"]


def test_other_vocabularies_are_compared_by_bytes(tmp_path, page):
    one = write_run_folder(tmp_path / "one")
    two = write_run_folder(tmp_path / "two", model={"kind": "gpt2", "vocab_size": 500})
    sections, figures = page(one, two)
    assert "The vocabularies of these runs differ" in sections["curves"]
    assert figures["plots"][0]["title"] == "Loss in bits per byte"
    assert figures["plots"][0]["curves"][1]["y"] == [2.25, 2.0, 1.75, 1.5]
    (two / "metrics.jsonl").write_bytes(
        b"\n".join(
            line for line in (two / "metrics.jsonl").read_bytes().splitlines() if b"validation" not in line
        )
    )
    sections, figures = page(one, two)
    assert "two was not validated" in sections["curves"]
    assert figures["plots"][0]["title"] == "Loss in nats"


def test_half_a_run_is_shown_as_far_as_it_goes(tmp_path, page):
    folder = write_run_folder(tmp_path / "run", steps=15)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "train", "step": 16, "lo')
    (folder / "checkpoints/step_0000010").mkdir(parents=True)
    (folder / "origins.json").write_text("[")
    with pytest.raises(DataError, match="not valid JSON"):
        page(folder)
    write_json(
        folder / "origins.json", {"num_steps": ["40", "command line"], "model.kind": ["llama", "preset"]}
    )
    sections, _ = page(folder)
    assert "38% of 40: stopped, or still training" in sections[""]
    assert re.search(r"step_0000010 .*incomplete", sections["checkpoints"])
    assert re.search(r"num_steps\s+40\s+command line", sections["settings"])
    assert re.search(r"model.kind\s+gpt2\s+not recorded", sections["settings"])  # it was changed since


def test_a_run_without_records_is_said_to_have_none(tmp_path, page):
    folder = write_run_folder(tmp_path / "run")
    for name in ("metrics.jsonl", "starts.jsonl"):
        (folder / name).unlink()
    sections, figures = page(folder)
    assert figures["plots"] == [] and "There are no metrics yet" in sections["curves"]
    assert "No evaluation is recorded" in sections["evaluation"] and "samples" not in sections
    assert "No restart, skipped step or rollback" in sections["restarts-and-spikes"]
    with pytest.raises(DataError, match="is not a run: it has neither"):
        page(folder, tmp_path / "none")


def test_what_a_fine_tuning_measures_is_drawn_too(tmp_path, page):
    folder = write_run_folder(tmp_path / "run", stage={"kind": "grpo"})
    records = [
        {"kind": "train", "step": n, "loss": 0.7, "reward": n / 9, "kl": 0.1 * n} for n in range(1, 10)
    ]
    records += [{"kind": "validation", "step": 9, "loss": 0.6, "bits_per_byte": 0.0, "margins": 1.5}]
    (folder / "metrics.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)))
    lines = [{"step": n, "prompt": f"{n}+1=", "completion": str(n + 1), "reward": n / 2} for n in range(100)]
    (folder / "samples.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)) + b'\n{"step": 1')
    run = read_run(folder, "run")
    assert [plot.title for plot in figure_plots([run])] == ["Reward", "KL", "Margins"]
    sections, figures = page(folder)
    assert figures["plots"][0]["title"] == "Loss"  # which is none of tokens, in nats
    samples = re.findall(r"step (\d+) · reward ([\d.]+)\s+(\d+)\+1=(\d+)", sections["samples"])
    assert len(samples) == 12 and samples[0] == ("0", "0", "0", "1")
    assert all(float(reward) == int(step) / 2 for step, reward, _, _ in samples)
    assert int(samples[-1][0]) > 80


def test_each_prompt_is_shown_over_time(tmp_path, page):
    folder = write_run_folder(tmp_path / "run")
    prompts = ("1+1=", "2+2=", "3+3=")
    records = [
        {"kind": "sample", "step": step, "prompt": prompt, "text": f"{prompt}{step}"}
        for step in range(10, 210, 10)
        for prompt in prompts
    ]
    (folder / "metrics.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)))
    shown = re.findall(r"step (\d+)\s+(\S+=)(\d+)", page(folder)[0]["samples"])
    assert [prompt for _, prompt, _ in shown] == [prompt for prompt in prompts for _ in range(4)]
    assert [step for step, _, _ in shown] == [said for _, _, said in shown] == ["10", "70", "140", "200"] * 3


def test_results_of_eval_in_the_run_folder_are_shown(tmp_path, page):
    folder = write_run_folder(tmp_path / "run")
    tree = {"task": "piqa", "figures": {"accuracy": 0.625}, "standard_errors": {"accuracy": 0.017}}
    (folder / "evaluations").mkdir()
    for name in ("piqa.json", "evaluations/step_0000020.json"):
        write_json(folder / name, {"kind": "evaluation", "tasks": [tree]})
    (folder / "other.json").write_text("{")
    found = page(folder)[0]["evaluation"]
    assert re.search(r"piqa\s+accuracy\s+0.625\s+0.017\s+20\s+evaluations/step_0000020.json", found)
    assert re.search(r"piqa\s+accuracy\s+0.625\s+0.017\s+piqa.json", found)


def test_long_runs_are_thinned_but_keep_their_spikes():
    records = [{"kind": "train", "step": n, "loss": 99.0 if n == 31_337 else 1.0} for n in range(100_000)]
    kept = thinned(records)
    assert len(kept) <= 2_000 and (kept[0], kept[-1]) == (records[0], records[-1])
    assert records[31_337] in kept
    assert [one["step"] for one in kept] == sorted({one["step"] for one in kept})


def test_training_writes_its_report_and_survives_one_that_fails(tmp_path, monkeypatch, caplog):
    data = make_data(tmp_path)
    settings = ("validation.interval=2", "log.report=at_validation", "num_steps=4", "checkpoint.interval=2")
    config = make_config(data, tmp_path / "run", *settings)
    written = []
    monkeypatch.setattr(run_page, "write_run_page", lambda folders, output: written.append(folders) or output)
    run_training(config, {"num_steps": "command line (num_steps=4)"})
    assert written == [[tmp_path / "run"]] * 2  # after step 2, and at the end
    monkeypatch.undo()
    (tmp_path / "run/origins.json").write_text("{")
    caplog.set_level(logging.INFO, logger="groundup")
    longer = make_config(data, tmp_path / "run", *settings, "num_steps=6")
    run_training(longer)  # without origins, so that the damaged ones stay
    assert "the report of the run could not be written (DataError" in caplog.text
    run_training(longer, {"num_steps": "command line (num_steps=6)"})
    sections, figures = shown((tmp_path / "run/report.html").read_text())
    assert re.search(r"num_steps\s+6\s+command line \(num_steps=6\)", sections["settings"])
    assert [(mark["step"], mark["kind"]) for mark in figures["marks"]] == [(4, "restart"), (6, "restart")]
    assert "documents.jsonl" in sections["data"] and "step_0000006" in sections["checkpoints"]
    assert "complete (contents not read)" in sections["checkpoints"]
    sections, _ = shown(
        write_run_page([tmp_path / "run"], tmp_path / "p.html", reads_checkpoints=True).read_text()
    )
    assert "sound" in sections["checkpoints"]


def test_the_loss_of_each_run_is_in_its_own_unit(tmp_path):
    run = read_run(write_run_folder(tmp_path / "run"), "run")
    nats, bits = loss_plot([run], per_byte=False), loss_plot([run], per_byte=True)
    for one, other in zip(nats.curves, bits.curves, strict=True):
        pairs = zip(one.values, other.values, strict=True)
        assert all(a == b or a == pytest.approx(2 * b) for a, b in pairs)
