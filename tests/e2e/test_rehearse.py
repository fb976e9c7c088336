"""``groundup rehearse`` takes a run from a web site to a service, and names the stage that fails."""

import pytest

from groundup.cli.app import run
from groundup.core.errors import ConfigError, TrainingError
from tests.guides import commands
from tests.guides import run as run_shell
from tests.runs import make_data

RUN = ("preset=tiny", "run_dir=runs/a", "model.num_heads=2", "global_batch_size=8")


@pytest.mark.example
def test_every_stage_of_a_run_is_rehearsed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = make_data(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run(["rehearse", *RUN, f"data.path={data}", "layout.dp=2", "layout.zero=2", "-o", "out"])
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert "All 9 stages work" in printed and printed.count("[ok]") == 9
    assert "that of the run's data" in printed and "dp 2, zero 2" in printed and "layout.dp=1" in printed
    assert (tmp_path / "out/huggingface/config.json").is_file()


@pytest.mark.example
def test_the_guides_command_runs(tmp_path):
    (command,) = commands("docs/guides/rehearsal.md")
    assert "All 9 stages work" in run_shell(command, tmp_path, fresh=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.example
def test_a_stage_that_fails_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stages = "[{kind: import}, {kind: clean, filters: [{kind: length, min_words: 100000}]}]"
    (tmp_path / "recipe.yaml").write_text(f"stages: {stages}\n")
    with pytest.raises(TrainingError, match="corpus failed; not reached: tokenizer, tokens, train, resume"):
        run(["rehearse", *RUN, "data.path=none", "--recipe", "recipe.yaml", "-o", "out"])
    printed = capsys.readouterr().out
    assert printed.count("[ok]") == 1 and "[FAILED] corpus" in printed and "out/corpus-run.log" in printed


def test_a_layout_that_cannot_work_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="num_heads 2 is not divisible by tp 3"):
        run(["rehearse", *RUN, "data.path=none", "layout.dp=1", "layout.tp=3", "-o", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_full_folder_is_refused(tmp_path):
    (tmp_path / "own").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        run(["rehearse", *RUN, "data.path=none", "--out", str(tmp_path)])
