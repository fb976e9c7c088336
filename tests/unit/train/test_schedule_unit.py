"""A schedule that counts samples, as Megatron-LM's does: the rate of an update is that of those before it."""

import dataclasses

import pytest

from tests.runs import losses, make_config, make_data, run

SAMPLES = ("schedule_unit=samples", "optimizer.lr=0.01", "schedule.kind=linear")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def rates(records):
    return [record["lr"] for record in records if record["kind"] == "train"]


def test_the_first_update_takes_the_rate_of_no_samples(data, tmp_path):
    config = make_config(data, tmp_path / "run", *SAMPLES, "warmup.steps=2")  # 6 steps of 4 samples
    records = run(config)
    assert rates(records) == pytest.approx([0, 0.005, 0.01, 0.0075, 0.005, 0.0025])
    found = losses(records)
    assert found[1] != found[2]  # other samples: the weights are the same
    plain = losses(run(make_config(data, tmp_path / "plain", *SAMPLES[1:], "warmup.steps=2")))
    assert found[1] == plain[1]
    assert found[2] != plain[2]  # whose first update was one


def test_a_ramp_and_a_horizon_in_samples(data, tmp_path):
    ramp = ("batch_ramp.start=2", "batch_ramp.increment=2", "batch_ramp.samples=4")  # 2, 2, then 4
    lengths = ("warmup.kind=samples", "warmup.samples=8", "schedule_samples=16")
    records = run(make_config(data, tmp_path / "run", *SAMPLES, *ramp, *lengths))
    assert rates(records) == pytest.approx([0, 0.0025, 0.005, 0.01, 0.005, 0])


def test_samples_of_skipped_steps_do_not_count_and_resuming_knows_them(data, tmp_path, monkeypatch):
    monkeypatch.setattr("groundup.parallel.device.lacks", lambda name, device: "")
    scale = ("precision=fp16", "loss_scale.initial=1048576", "loss_scale.hysteresis=1", "schedule_steps=8")
    config = make_config(data, tmp_path / "run", *SAMPLES, *scale, "warmup.steps=6", "num_steps=8")
    run(dataclasses.replace(config, num_steps=5))
    records = [record for record in run(config) if record["kind"] == "train"]
    skipped = [0, *(record["skipped_steps"] for record in records)]
    assert 1 <= skipped[-1] <= 5
    updates = [number - before for number, before in enumerate(skipped[:-1])]  # before each step
    assert updates[-1] >= 2
    assert rates(records) == pytest.approx([0.01 / 6 * count for count in updates])


def test_weight_decay_grows_over_the_run(data, tmp_path):
    decay = ("optimizer.weight_decay=0.9", "optimizer.weight_decay_start=0")
    growing = losses(run(make_config(data, tmp_path / "growing", *SAMPLES, *decay)))
    without = losses(run(make_config(data, tmp_path / "without", *SAMPLES, "optimizer.weight_decay=0")))
    assert growing[2] == without[2]  # the first update decays by 0
    assert growing[6] != without[6]
