"""Models over ranks have the scores of one process: loaded from any format, and while they train."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from groundup.checkpoint.formats import open_lazy, open_model
from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import LoadedModel, as_lazy
from groundup.checkpoint.load_over_ranks import load_over_ranks
from groundup.checkpoint.native import load
from groundup.checkpoint.native.model import write_native
from groundup.core.errors import MachineError
from groundup.eval.measure import measure
from groundup.eval.scoring import Request, loglikelihood
from groundup.eval.tasks import configured_tasks
from groundup.launch.env import rank_from_env
from groundup.parallel.device import choose_precision
from groundup.parallel.layout import Layout, PipelineConfig
from groundup.parallel.mesh import init_distributed
from tests.parallel.ranks import train_on_ranks
from tests.runs import losses, make_config, make_data, records_of, run
from tests.task_files import write_task_file
from tests.tiny import tiny_model

CPU = torch.device("cpu")
PRECISION = choose_precision("fp32", CPU)
INTERLEAVED = PipelineConfig(schedule="interleaved")
LAYOUTS = {
    2: {
        "dp2": Layout(dp=2),
        "tp2": Layout(dp=1, tp=2),
        "pp2": Layout(dp=1, pp=2),
        "pp2-interleaved": Layout(dp=1, pp=2, pipeline=INTERLEAVED),
    },
    4: {"dp2-tp2": Layout(dp=2, tp=2), "tp2-pp2": Layout(dp=1, tp=2, pp=2), "tp4": Layout(dp=1, tp=4)},
}
KINDS = ["lambada", "hellaswag", "wikitext"]
OPTIONS = ["wikitext.stride=16", "lambada.batch_size=3"]


@dataclasses.dataclass(frozen=True)
class Case:
    """What ranks measure: ``run_dir`` is for what they write."""

    run_dir: Path
    model: Path
    layout: Layout
    sets: Path


def trees_of(loaded: LoadedModel, sets: Path) -> list:
    tasks = configured_tasks(KINDS, OPTIONS)
    return [json.loads(json.dumps(found.tree)) for found in measure(loaded, tasks, [sets], PRECISION)]


def measure_over_ranks(case: Case) -> None:
    mesh = init_distributed(case.layout, rank_from_env(), CPU)
    num_bytes, read = 0, load._read

    def counted(descriptor, offset, target, path):
        nonlocal num_bytes
        num_bytes += len(target)
        read(descriptor, offset, target, path)

    load._read = counted
    loaded = load_over_ranks(open_lazy(case.model), mesh, precision=PRECISION.autocast)
    load._read = read
    trees = trees_of(loaded, case.sets)
    case.run_dir.mkdir(exist_ok=True)
    (case.run_dir / f"{mesh.rank}.json").write_text(json.dumps({"trees": trees, "num_bytes": num_bytes}))


def require_equal_scores(found: list, expected: list) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["figures"] == pytest.approx(theirs["figures"], rel=1e-5)
        for one, other in zip(ours["items"], theirs["items"], strict=True):
            assert one["prediction"] == other["prediction"]
            for score, wanted in zip(one["scores"], other["scores"], strict=True):
                assert score["is_greedy"] == wanted["is_greedy"]
                assert score["logprob"] == pytest.approx(wanted["logprob"], rel=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a native checkpoint, a Hugging Face folder and items of tasks."""
    folder = tmp_path_factory.mktemp("models")
    write_native(as_lazy(tiny_model("gpt2", num_layers=4)), folder / "native")
    write_huggingface(tiny_model("llama-grouped-tied", num_layers=4), folder / "hf")
    (folder / "sets").mkdir()
    for kind in KINDS:
        write_task_file(kind, folder / "sets", count=7)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("world_size", LAYOUTS)
def test_scores_equal_those_of_one_process(folder: Path, tmp_path: Path, world_size: int) -> None:
    cases = {
        (model, name): Case(tmp_path / f"{model}-{name}", folder / model, layout, folder / "sets")
        for model in ("native", "hf")
        for name, layout in LAYOUTS[world_size].items()
    }
    train_on_ranks(world_size, list(cases.values()), tmp_path, measure_over_ranks)
    for model in ("native", "hf"):
        expected = trees_of(open_model(folder / model, device=CPU), folder / "sets")
        assert any(item["values"]["accuracy"] for tree in expected for item in tree["items"])
        for name in LAYOUTS[world_size]:
            for rank in range(world_size):
                found = json.loads((tmp_path / f"{model}-{name}" / f"{rank}.json").read_text())
                require_equal_scores(found["trees"], expected)


@pytest.mark.slow
def test_each_rank_reads_its_part_of_the_weights(folder: Path, tmp_path: Path) -> None:
    cases = {
        name: Case(tmp_path / name, folder / "native", LAYOUTS[2][name], folder / "sets")
        for name in ("tp2", "pp2")
    }
    train_on_ranks(2, list(cases.values()), tmp_path, measure_over_ranks)
    whole = sum(tensor.size_bytes for tensor in open_lazy(folder / "native").weights.values())
    for name in cases:
        read = [json.loads((tmp_path / name / f"{rank}.json").read_text())["num_bytes"] for rank in (0, 1)]
        assert max(read) < 0.9 * whole  # a matrix that is cut by columns is read whole, a tied head twice


def refuse_more_than(most: int):
    def hook(_, inputs):
        if len(inputs[0]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return hook


def fill_the_memory(case: Case) -> None:
    """On rank 1 alone, which holds two texts at once."""
    mesh = init_distributed(case.layout, rank_from_env(), CPU)
    loaded = load_over_ranks(open_lazy(case.model), mesh, precision=PRECISION.autocast)
    ours = [Request(np.array([number, 1]), np.array([2, 3])) for number in range(12)]
    expected = [score.logprob for score in loglikelihood(loaded.model, loaded.config, ours)]
    if mesh.rank == 1:
        loaded.model.model.embed.register_forward_pre_hook(refuse_more_than(2))
    if case.layout.dp == 2:
        found = [score.logprob for score in loglikelihood(loaded.model, loaded.config, ours)]
        assert found == pytest.approx(expected, abs=1e-5)
    elif mesh.rank == 1:
        with pytest.raises(MachineError, match="12 texts of 3 tokens"):
            loglikelihood(loaded.model, loaded.config, ours)


@pytest.mark.slow
def test_a_full_memory_of_one_rank_halves_the_micro_batches_of_all(folder: Path, tmp_path: Path) -> None:
    case = Case(tmp_path / "dp2", folder / "native", Layout(dp=2), folder / "sets")
    train_on_ranks(2, [case], tmp_path, fill_the_memory)


TRAINED = {
    2: {
        "dp2-zero3": Layout(dp=2, zero=3),
        "tp2": Layout(dp=1, tp=2),
        "pp2": Layout(dp=1, pp=2),
        "cp2": Layout(dp=1, cp=2),
    },
}


@pytest.mark.slow
def test_a_run_under_any_layout_scores_and_does_not_notice(tmp_path: Path) -> None:
    data, sets = make_data(tmp_path), tmp_path / "sets"
    sets.mkdir()
    for kind in ("lambada", "hellaswag"):
        write_task_file(kind, sets, count=5)
    more = ("eval.every=2", "eval.tasks=lambada,hellaswag", f"eval.data={sets}", "ema.decay=0.5")
    configs = {
        (name, evaluates): dataclasses.replace(
            make_config(
                data,
                tmp_path / f"{name}-{evaluates}",
                "micro_batch_size=1",
                "num_steps=4",
                "model.dropout=0.1",
                *(more if evaluates else ()),
            ),
            layout=layout,
        )
        for name, layout in TRAINED[2].items()
        for evaluates in (False, True)
    }
    train_on_ranks(2, list(configs.values()), tmp_path, run)
    for name in TRAINED[2]:
        config = configs[name, True]
        records = records_of(config)
        assert losses(records) == losses(records_of(configs[name, False]))
        loaded = open_model(config.run_dir, device=CPU)
        for found in measure(loaded, configured_tasks(["lambada", "hellaswag"], []), [sets], PRECISION):
            scored = [record for record in records if record["kind"] == f"eval/{found.kind}"]
            assert [record["step"] for record in scored] == [2, 4]
            for figure, value in found.results.figures.items():
                assert scored[-1][figure] == pytest.approx(value, rel=1e-5), (name, figure)
