"""A rehearsed config keeps what the user chose and can be trained here, whatever the layout."""

import dataclasses
from pathlib import Path

import pytest

from groundup.cli.run_config import run_config
from groundup.parallel.layout import Layout, PipelineConfig
from groundup.parallel.validate import validate_layout
from groundup.rehearsal.shrink import differences, rehearsed_config, rehearsed_layout, resumed_layout

LAYOUTS = [
    Layout(),
    Layout(dp=1),
    Layout(dp=64),
    Layout(dp=3, zero=3),
    Layout(dp=8, zero=2, shard=4),
    Layout(dp=1, tp=4),
    Layout(dp=1, tp=8),
    Layout(dp=1, pp=4, pipeline=PipelineConfig(schedule="gpipe")),
    Layout(dp=2, pp=4, pipeline=PipelineConfig(schedule="interleaved")),
    Layout(dp=1, pp=3, pipeline=PipelineConfig(layers=(8, 8, 8))),
    Layout(dp=16, tp=8, pp=8, zero=1),
    Layout(dp=1, tp=2, pp=2, cp=2),
    Layout(dp=2, cp=4, zero=3),
]


def rehearsed(*overrides: str):
    config = run_config(None, ["preset=gpt2-345m", "run_dir=a", "data.path=b", *overrides]).value
    paths = {"run_dir": Path("small"), "data": Path("tokens"), "tokenizer": Path("tokenizer")}
    return config, rehearsed_config(config, **paths)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_both_halves_of_a_rehearsal_can_be_trained(layout):
    config, _ = rehearsed()
    paths = {"run_dir": Path("small"), "data": Path("tokens"), "tokenizer": Path("tokenizer")}
    small = rehearsed_config(dataclasses.replace(config, layout=layout), **paths)
    first, second = small.layout, resumed_layout(small.layout)
    assert first.num_ranks <= 8 and first.num_ranks != second.num_ranks
    for name in ("tp", "pp", "cp"):
        assert (getattr(first, name) > 1) == (getattr(layout, name) > 1)
    assert first.zero == layout.zero and first.pipeline.schedule == layout.pipeline.schedule
    for one in (first, second):
        validate_layout(
            one,
            dataclasses.replace(config.model, num_layers=max(2, first.pp * 2)),
            sequence_length=64,
            batch_sizes=small.batch_sizes.every,
            micro_batch_size=small.micro_batch_size,
            world_size=one.num_ranks,
        )


def test_few_ranks_stay_as_they_are():
    layout = Layout(dp=1, tp=4)
    assert rehearsed_layout(layout) == layout


def test_what_is_not_the_layouts_stays():
    config, small = rehearsed("optimizer.lr=7e-4", "clip_grad_norm=0.5", "precision=fp32", "ema.decay=0.9")
    for name in (
        "optimizer",
        "schedule",
        "clip_grad_norm",
        "precision",
        "ema",
        "recompute",
        "seed",
        "watchdog",
    ):
        assert getattr(small, name) == getattr(config, name)


def test_each_source_of_a_mixture_is_replaced():
    config, small = rehearsed(
        "data.path=null", "data.sources.web.path=w", "data.sources.books.path=b", "data.validation.web.path=v"
    )
    assert {name: source.path for name, source in small.data.sources.items()} == {
        "web": Path("tokens"),
        "books": Path("tokens"),
    }
    assert small.data.validation["web"].path == Path("tokens") and small.data.path is None
    assert config.data.sources["web"].path == Path("w")


def test_what_differs_is_said():
    config, small = rehearsed(
        "layout.dp=32",
        "compile=true",
        "batch_ramp.start=4",
        "batch_ramp.increment=4",
        "batch_ramp.samples=80",
    )
    told = "\n".join(differences(config, small))
    assert "64 tokens a sample, not 1024" in told and "dp 2, not dp 32" in told
    assert "torch.compile" in told and "does not grow" in told
