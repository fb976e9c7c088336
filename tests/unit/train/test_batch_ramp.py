"""Runs whose batch grows: the samples are those of any run, only cut otherwise, and resuming is exact."""

import dataclasses

import orjson
import pytest

from groundup.core.errors import ConfigError, DataError
from tests.runs import losses, make_config, make_data, run

SGD = ("optimizer.kind=sgd", "optimizer.lr=0.5")
RAMP = ("batch_ramp.start=2", "batch_ramp.increment=2", "batch_ramp.samples=8", "global_batch_size=6")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def test_a_ramp_from_the_full_size_changes_nothing(data, tmp_path):
    flat = ("batch_ramp.start=4", "batch_ramp.increment=2", "batch_ramp.samples=8")
    assert losses(run(make_config(data, tmp_path / "ramp", *flat))) == losses(
        run(make_config(data, tmp_path / "plain"))
    )


def test_the_first_steps_are_those_of_the_small_batch_and_each_step_is_told(data, tmp_path):
    config = make_config(data, tmp_path / "ramp", *SGD, *RAMP, "log.interval=1", "validation.interval=0")
    records = [record for record in run(config) if record["kind"] == "train"]
    # 2 for the first 4 samples, 4 until the eighth, then 6.
    assert [record["batch_size"] for record in records] == [2, 2, 4, 6, 6, 6]
    assert [record["samples"] for record in records] == [2, 4, 8, 14, 20, 26]
    assert records[-1]["tokens"] == 26 * 32
    assert config.num_samples == 26
    small = losses(run(make_config(data, tmp_path / "small", *SGD, "global_batch_size=2")))
    assert [record["loss"] for record in records[:2]] == [small[1], small[2]]
    assert records[2]["loss"] != small[3]


def test_resuming_across_a_change_of_size_is_exact(data, tmp_path):
    whole = losses(run(make_config(data, tmp_path / "whole", *RAMP)))
    for cut in (1, 2, 3):
        settings = (*RAMP, "schedule_steps=6", f"num_steps={cut}")
        first = make_config(data, tmp_path / str(cut), *settings)
        run(first)
        assert losses(run(dataclasses.replace(first, num_steps=6))) == whole


def test_a_ramp_may_be_cut_into_any_micro_batches(data, tmp_path):
    sizes = ("batch_ramp.start=4", "batch_ramp.increment=4", "batch_ramp.samples=8", "global_batch_size=8")
    curves = [
        losses(run(make_config(data, tmp_path / size, *SGD, *sizes, f"micro_batch_size={size}")))
        for size in "124"
    ]
    assert curves[0] == pytest.approx(curves[1], rel=1e-6)
    assert curves[0] == pytest.approx(curves[2], rel=1e-6)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((*RAMP, "batch_ramp.start=3"), "leads from 3 past global_batch_size 6"),
        (
            (*RAMP, "batch_ramp.start=5", "batch_ramp.increment=1"),
            "steps of 5 samples, which is not a multiple of micro_batch_size 2",
        ),
        (("batch_ramp.start=2",), "a ramp needs start, increment and samples"),
    ],
)
def test_a_ramp_that_cannot_be_is_refused(data, tmp_path, overrides, expected):
    with pytest.raises(ConfigError, match=expected):
        make_config(data, tmp_path / "run", *overrides)


def test_the_plan_counts_the_samples_of_the_ramp(data, tmp_path):
    """One epoch has fewer samples than 300 full steps ask for; with a ramp the longest run has more steps."""
    settings = ("data.max_epochs=1", "num_steps=100000", "global_batch_size=4")
    with pytest.raises(DataError, match=r"num_steps=(\d+)") as plain:
        run(make_config(data, tmp_path / "plain", *settings))
    ramp = ("batch_ramp.start=2", "batch_ramp.increment=2", "batch_ramp.samples=100")
    with pytest.raises(DataError, match=r"steps of 2 to 4 samples.*num_steps=(\d+)") as ramped:
        run(make_config(data, tmp_path / "ramp", *settings, *ramp))
    longest = [
        int(str(error.value).split("num_steps=")[1].split(",")[0].rstrip(".")) for error in (plain, ramped)
    ]
    assert longest[1] == longest[0] + 25  # 50 steps of 2 instead of 25 of 4


def test_a_run_folder_of_another_ramp_is_refused(data, tmp_path):
    run(make_config(data, tmp_path / "run", "num_steps=2", *RAMP))
    manifest = orjson.loads((tmp_path / "run/checkpoints/latest/manifest.json").read_bytes())
    assert manifest["counts"]["samples"] == 4
    with pytest.raises(Exception, match=r"batch_ramp\.samples was 8 and is 9"):
        run(make_config(data, tmp_path / "run", *RAMP, "batch_ramp.samples=9"))
