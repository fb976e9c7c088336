"""``groundup eval RUN --every-checkpoint``, and figures on TensorBoard."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from groundup.cli import eval_checkpoints
from groundup.cli.app import run as run_command
from groundup.core.errors import CheckpointError, ConfigError
from groundup.eval.score_plot import panel
from tests.runs import make_config, make_data, run
from tests.task_files import write_task_file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of checkpoints at steps 2, 4 and 6, and items of tasks."""
    folder = tmp_path_factory.mktemp("trained")
    more = ("checkpoint.interval=2", "checkpoint.keep_last=3", "optimizer.lr=3e-3")
    run(make_config(make_data(folder), folder / "run", *more))
    (folder / "sets").mkdir()
    for kind in ("lambada", "hellaswag"):
        write_task_file(kind, folder / "sets", count=4)
    return folder


@pytest.fixture
def fresh(trained: Path) -> Path:
    """The same without results."""
    for path in (trained / "run/evaluations").glob("*"):
        path.unlink()
    return trained


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Checkpoint and task of each measurement, as they come."""
    seen: list[tuple[str, str]] = []

    def measure(loaded, task, *rest):
        seen.append((loaded.source.name, task.kind))
        return original(loaded, task, *rest)

    import groundup.eval.measure as module

    original = module.measure_task
    monkeypatch.setattr(module, "measure_task", measure)
    return seen


def evaluate(folder: Path, tasks: str = "lambada,hellaswag", *more: str) -> None:
    words = ["--tasks", tasks, "--data", str(folder / "sets"), "--device", "cpu", *more]
    with pytest.raises(SystemExit) as ended:
        run_command(["eval", str(folder / "run"), *words])
    assert not ended.value.code


def test_each_checkpoint_is_measured_once(
    fresh: Path, measured: list, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(fresh, "lambada", "--every-checkpoint")
    steps = ["step_0000002", "step_0000004", "step_0000006"]
    assert measured == [(step, "lambada") for step in steps]
    evaluate(fresh, "lambada,hellaswag", "--every-checkpoint")
    assert measured[3:] == [(step, "hellaswag") for step in steps]
    evaluate(fresh, "lambada,hellaswag", "--every-checkpoint")
    assert len(measured) == 6
    evaluate(fresh, "lambada", "--every-checkpoint", "lambada.limit=2")
    assert measured[6:] == [(step, "lambada") for step in steps]
    rows = capsys.readouterr().out.splitlines()[-5:]
    assert re.fullmatch(r" +step +lambada accuracy", rows[0])
    assert [row.split()[0] for row in rows[1:4]] == ["2", "4", "6"]
    assert rows[4] == f"Drawn in {fresh / 'run/evaluations/scores.html'}"


def test_scores_are_those_of_the_checkpoint_alone(fresh: Path, tmp_path: Path) -> None:
    evaluate(fresh, "hellaswag", "--every-checkpoint")
    evaluate(fresh, "hellaswag", "--out", str(tmp_path / "last.json"))
    kept = json.loads((fresh / "run/evaluations/step_0000006.json").read_text())["tasks"][0]
    alone = json.loads((tmp_path / "last.json").read_text())["tasks"][0]
    for name in ("figures", "standard_errors", "items"):
        assert kept[name] == alone[name]
    page = (fresh / "run/evaluations/scores.html").read_text()
    assert page.count("<svg") == 4  # accuracy by four lengths, and not the number of items
    assert page.count("<circle") == 4 * 3


def test_an_interruption_loses_one_task_at_most(
    fresh: Path, measured: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_):
        if len(measured) == 3:  # while it is measured
            raise KeyboardInterrupt

    monkeypatch.setattr(eval_checkpoints.logger, "info", stop)
    with pytest.raises(KeyboardInterrupt):
        evaluate(fresh, "hellaswag,lambada", "--every-checkpoint", "--json")
    monkeypatch.setattr(eval_checkpoints.logger, "info", lambda *_: None)
    evaluate(fresh, "hellaswag,lambada", "--every-checkpoint", "--json")
    steps = ["step_0000004", "step_0000006"]
    assert measured[3:] == [(step, kind) for step in steps for kind in ("hellaswag", "lambada")]


def test_a_damaged_checkpoint_is_named_and_left_out(
    fresh: Path, measured: list, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_checkpoints.logger, "propagate", True)
    weights = fresh / "run/checkpoints/step_0000004/model.safetensors"
    content = weights.read_bytes()
    try:
        weights.write_bytes(content[:-4] + b"oops")
        evaluate(fresh, "lambada", "--every-checkpoint")
    finally:
        weights.write_bytes(content)
    assert [step for step, _ in measured] == ["step_0000002", "step_0000006"]
    assert "step_0000004: the checkpoint is damaged" in caplog.text
    evaluate(fresh, "lambada", "--every-checkpoint")
    assert measured[-1] == ("step_0000004", "lambada")


def test_what_has_no_checkpoints_is_refused(trained: Path) -> None:
    data = ["--data", str(trained / "sets"), "--tasks", "lambada", "--every-checkpoint"]
    with pytest.raises(CheckpointError, match="sets: holds no checkpoint of a run"):
        run_command(["eval", str(trained / "sets"), *data])
    with pytest.raises(ConfigError, match="--out: results are kept in RUN/evaluations"):
        run_command(["eval", str(trained / "run"), *data, "--out", "a.json"])


def test_figures_are_on_tensorboard_at_their_steps(fresh: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    evaluate(fresh, "lambada", "--every-checkpoint", "--tensorboard", str(tmp_path / "all"))
    evaluate(fresh, "lambada", "--tensorboard", str(tmp_path / "last"))
    for name, steps in (("all", [2, 4, 6]), ("last", [6])):
        events = EventAccumulator(str(tmp_path / name))
        events.Reload()
        found = {event.step: event.value for event in events.Scalars("eval/lambada/perplexity")}
        assert list(found) == steps
        for step, value in found.items():
            tree = json.loads((fresh / f"run/evaluations/step_{step:07}.json").read_text())["tasks"][0]
            assert value == pytest.approx(tree["figures"]["perplexity"], rel=1e-6)


@pytest.mark.parametrize("values", [{5: (0.25, 0.0)}, {5: (0.25, 0.1), 15: (0.5, 0.1), 25: (0.75, 0.1)}])
def test_a_drawing_shows_its_values(values: dict[int, tuple[float, float]]) -> None:
    drawn = ElementTree.fromstring(panel("a < b & c", values))
    name = "{http://www.w3.org/2000/svg}"
    dots = drawn.findall(f"{name}circle")
    assert [dot.find(f"{name}title").text for dot in dots] == [
        f"step {step}: {value:.4f} ± {error:.4f}" for step, (value, error) in values.items()
    ]
    heights = [float(dot.attrib["cy"]) for dot in dots]
    assert heights == sorted(heights, reverse=True)  # higher values are further up
    if len(dots) == 3:
        assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    assert drawn.find(f"{name}text").text == "a < b & c"
