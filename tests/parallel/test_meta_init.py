"""A rank's part of a model that is built on meta has the values of a whole model's, at less memory."""

import contextlib
import dataclasses
import resource
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from groundup.launch.env import rank_from_env
from groundup.models import build_model
from groundup.models.init import initialise
from groundup.parallel.activation_checkpointing import Recompute
from groundup.parallel.apply import materialize, parallelize
from groundup.parallel.dtensor import place
from groundup.parallel.layout import Layout, PipelineConfig
from groundup.parallel.mesh import init_distributed
from tests.instances import MODELS
from tests.parallel.ranks import train_on_ranks
from tests.runs import make_config, make_data

INTERLEAVED = PipelineConfig(schedule="interleaved")
LAYOUTS = {
    2: (Layout(dp=2, zero=3), Layout(dp=2), Layout(tp=2), Layout(pp=2), Layout(pp=2, pipeline=INTERLEAVED)),
    4: (Layout(dp=2, tp=2, zero=3), Layout(dp=2, pp=2, zero=1), Layout(dp=4, zero=3, shard=2)),
}
NUM_LAYERS = 4  # two stages a rank


def parallelized(model, mesh):
    options = {"recompute": Recompute(), "compile": False, "precision": contextlib.nullcontext}
    return model, parallelize(model, mesh, **options)


def cut_whole(config, mesh):
    model = build_model(config)
    initialise(model, config, seed=3)
    return parallelized(model, mesh)


def cut_on_meta(config, mesh):
    model, pipeline = parallelized(build_model(config, device="meta"), mesh)
    materialize(model, pipeline, torch.device("cpu"))
    initialise(model, config, seed=3, place=place)
    return model, pipeline


def local(parameter):
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def compare(run_config):
    mesh = init_distributed(run_config.layout, rank_from_env(), torch.device("cpu"))
    for name, config in MODELS.items():
        config = dataclasses.replace(config, num_layers=NUM_LAYERS)
        (whole, whole_pipeline), (meta, meta_pipeline) = (
            build(config, mesh) for build in (cut_whole, cut_on_meta)
        )
        parameters = list(meta.named_parameters())
        assert [key for key, _ in parameters] == [key for key, _ in whole.named_parameters()], name
        for (key, actual), expected in zip(parameters, whole.parameters(), strict=True):
            assert torch.equal(local(actual), local(expected)), (name, key)
            assert getattr(actual, "placements", None) == getattr(expected, "placements", None), (name, key)
        assert not any(buffer.is_meta for buffer in meta.buffers())
        if whole.head is not None and whole.embed is not None:
            ties = [model.head.weight is model.embed.tokens.weight for model in (whole, meta)]
            assert ties[0] == ties[1], name
        assert (whole_pipeline is None) == (meta_pipeline is None)


def measure(run_config):
    mesh = init_distributed(run_config.layout, rank_from_env(), torch.device("cpu"))
    cut_on_meta(run_config.model, mesh)  # what a first use of the libraries takes does not count
    large = dataclasses.replace(run_config.model, hidden_size=768, ffn_size=3072, num_layers=8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model, _ = cut_on_meta(large, mesh)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    mine = sum(local(parameter).nbytes for parameter in model.parameters())
    sizes = [parameter.nbytes for parameter in build_model(large, device="meta").parameters()]
    largest = max(sizes)
    assert mine < 0.6 * sum(sizes)
    assert peak < mine + 3 * largest, (peak, mine, largest)  # the value, its copy to cut up, and room to move


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", LAYOUTS)
def test_values_and_ties_are_those_of_the_whole_model(data: Path, tmp_path: Path, world_size: int) -> None:
    config = make_config(data, tmp_path / "run", "global_batch_size=4")
    configs = [dataclasses.replace(config, layout=layout) for layout in LAYOUTS[world_size]]
    train_on_ranks(world_size, configs, tmp_path, work=compare)


@pytest.mark.slow
def test_no_rank_has_more_than_its_part(data: Path, tmp_path: Path) -> None:
    config = make_config(data, tmp_path / "run", "global_batch_size=4")
    for layout in (Layout(dp=2, zero=3), Layout(pp=2)):
        one = dataclasses.replace(config, layout=layout)
        train_on_ranks(2, [one], tmp_path, work=measure, start_method="spawn")
