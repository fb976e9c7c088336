"""Tasks are scored while a run trains, and the run does not notice."""

import dataclasses
from pathlib import Path

import pytest
import torch

from groundup.checkpoint.formats import open_model
from groundup.cli.task_scores import task_scorer
from groundup.core.errors import ConfigError, DataError
from groundup.eval.measure import measure
from groundup.eval.tasks import configured_tasks
from groundup.models.llama import LlamaConfig
from groundup.parallel.device import choose_precision
from tests.runs import losses, make_config, make_data, records_of, run
from tests.task_files import write_task_file

LLAMA = LlamaConfig(
    vocab_size=300,
    max_sequence_length=32,
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    ffn_size=64,
)
NOISE = ("model.dropout=0.1", "model.attention_dropout=0.1", "optimizer.lr=3e-3")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    for kind in ("lambada", "hellaswag"):
        write_task_file(kind, folder, count=4)
    return folder


def evaluating(sets: Path, every: int = 2) -> tuple[str, ...]:
    return (f"eval.every={every}", "eval.tasks=lambada,hellaswag", f"eval.data={sets}")


def scores(records: list[dict]) -> list[tuple[int, str]]:
    return [(record["step"], record["kind"]) for record in records if record["kind"].startswith("eval/")]


def test_a_run_is_the_same_to_the_bit_with_and_without(data: Path, sets: Path, tmp_path: Path) -> None:
    without = run(make_config(data, tmp_path / "without", *NOISE))
    config = make_config(data, tmp_path / "with", *NOISE, *evaluating(sets))
    found = run(config)
    assert losses(found) == losses(without)
    both = ["eval/lambada", "eval/hellaswag"]
    assert scores(found) == [(step, kind) for step in (2, 4, 6) for kind in both]


def test_so_is_a_run_that_is_resumed(data: Path, sets: Path, tmp_path: Path) -> None:
    without = run(make_config(data, tmp_path / "without", *NOISE))
    config = make_config(data, tmp_path / "with", *NOISE, *evaluating(sets, every=1))

    def fail(_):
        if len(scores(records_of(config))) == 8:
            raise KeyboardInterrupt
        return task_scorer(config)(_)

    with pytest.raises(KeyboardInterrupt):  # in the evaluation of step 5; step 3 is saved
        run(config, score_tasks=fail)
    found = run(config)
    assert losses(found) == losses(without)
    assert [step for step, _ in scores(found)] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


def test_scores_are_those_of_the_checkpoint(data: Path, sets: Path, tmp_path: Path) -> None:
    config = make_config(data, tmp_path / "run", *evaluating(sets, every=3), "ema.decay=0.9")
    config = dataclasses.replace(config, model=LLAMA)
    found = {record["kind"]: record for record in run(config) if record["step"] == 6}
    for average in (False, True):
        loaded = open_model(config.run_dir, device=torch.device("cpu"), ema=average)
        tasks = configured_tasks(["lambada", "hellaswag"], [])
        precision = choose_precision("fp32", torch.device("cpu"))
        for one in measure(loaded, tasks, [sets], precision):
            record = found[f"eval/{one.kind}_ema" if average else f"eval/{one.kind}"]
            for name, value in one.results.figures.items():
                assert record[name] == pytest.approx(value, rel=1e-5)
    assert found["eval/lambada"]["perplexity"] != found["eval/lambada_ema"]["perplexity"]


def test_scores_are_on_tensorboard(data: Path, sets: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = make_config(data, tmp_path / "run", *evaluating(sets, every=3), "log.tensorboard=true")
    records = [record for record in run(config) if record["kind"] == "eval/lambada"]
    events = EventAccumulator(str(config.run_dir / "tensorboard"))
    events.Reload()
    shown = {event.step: event.value for event in events.Scalars("eval/lambada/perplexity")}
    assert shown == pytest.approx({record["step"]: record["perplexity"] for record in records})


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        (["eval.tasks=lambda"], ConfigError, "eval.tasks: 'lambda' is no task"),
        (["eval.options=lambada.limt=5"], ConfigError, "unknown key lambada.limt. Did you mean 'limit'"),
        (["eval.tasks=piqa"], DataError, "of files like"),
        (["eval.data=nowhere"], DataError, "eval.data: nowhere: there is no such file"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_the_run(
    settings: list[str], error: type[Exception], says: str, data: Path, sets: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        task_scorer(make_config(data, tmp_path / "run", *evaluating(sets), *settings))


def test_an_evaluation_needs_tasks_and_data(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval\.every needs eval\.tasks and eval\.data"):
        make_config(data, tmp_path / "run", "eval.every=5", "eval.tasks=lambada")


def test_options_of_tasks_are_read(data: Path, sets: Path, tmp_path: Path) -> None:
    config = make_config(
        data, tmp_path / "run", *evaluating(sets, 6), "eval.options=lambada.limit=3 hellaswag.prompt=plain"
    )
    (record,) = [record for record in run(config) if record["kind"] == "eval/lambada"]
    assert record["passages"] == 3
