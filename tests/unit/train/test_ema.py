"""The average of weights: the closed formula, exact resuming, and its way into evaluation and conversion."""

import pytest
import torch

from groundup.checkpoint.formats import open_model
from groundup.checkpoint.native.load import TensorGroup
from groundup.cli.train import evaluate
from groundup.core.errors import CheckpointError
from groundup.train.ema import WeightAverage
from groundup.train.setup import build_run
from tests.runs import losses, make_config, make_data, run

CPU = torch.device("cpu")
EMA = ("ema.decay=0.7", "optimizer.lr=1e-2")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def average_of(folder):
    group = TensorGroup(folder, "ema")
    return {name: group.read(name) for name in group}


def test_the_average_is_that_of_the_closed_formula(data, tmp_path):
    weights = []

    def note(run_):
        weights.append({name: p.detach().clone() for name, p in run_.state.model.named_parameters()})
        return [""]

    config = make_config(data, tmp_path / "run", *EMA, "sample.interval=1")
    weights.append({name: p.detach().clone() for name, p in build_run(config).state.model.named_parameters()})
    run(config, complete=note)
    assert len(weights) == 7
    for name, value in average_of(tmp_path / "run/checkpoints/step_0000006").items():
        expected = 0.7**6 * weights[0][name].double()
        for number in range(1, 7):
            expected += 0.3 * 0.7 ** (6 - number) * weights[number][name].double()
        torch.testing.assert_close(value.double(), expected[: len(value)], rtol=1e-5, atol=1e-7)


def test_the_average_changes_no_training_and_resumes_exactly(data, tmp_path):
    plain = losses(run(make_config(data, tmp_path / "plain", "optimizer.lr=1e-2")))
    assert losses(run(make_config(data, tmp_path / "whole", *EMA))) == plain
    cut = (*EMA, "schedule_steps=6")
    run(make_config(data, tmp_path / "cut", *cut, "num_steps=3"))
    assert losses(run(make_config(data, tmp_path / "cut", *cut))) == plain
    whole, resumed = (average_of(tmp_path / f"{name}/checkpoints/step_0000006") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_an_average_that_is_asked_for_later_begins_with_the_weights(data, tmp_path):
    run(make_config(data, tmp_path / "run", "num_steps=3", "schedule_steps=6"))
    run(make_config(data, tmp_path / "run", "num_steps=4", "schedule_steps=6", "ema.decay=0.7"))
    before = TensorGroup(tmp_path / "run/checkpoints/step_0000003", "model")
    after = TensorGroup(tmp_path / "run/checkpoints/step_0000004", "model")
    for name, value in average_of(tmp_path / "run/checkpoints/step_0000004").items():
        expected = 0.7 * before.read(name) + 0.3 * after.read(name)
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)


def test_evaluation_tells_both_and_gives_the_weights_back(data, tmp_path):
    settings = ("validation.interval=2", "validation.num_batches=2")
    records = run(make_config(data, tmp_path / "run", *EMA, *settings), evaluate=evaluate)
    plain = run(make_config(data, tmp_path / "plain", "optimizer.lr=1e-2", *settings), evaluate=evaluate)
    assert losses(records) == losses(plain)

    def of(records, kind):
        return [record["loss"] for record in records if record["kind"] == kind]

    assert of(records, "validation") == of(plain, "validation")
    assert len(of(records, "validation_ema")) == 3
    assert of(records, "validation_ema") != of(records, "validation")
    assert len(of(records, "test_ema")) == 1


def test_the_average_is_opened_on_request(data, tmp_path):
    run(make_config(data, tmp_path / "run", *EMA))
    run(make_config(data, tmp_path / "plain"))
    average = average_of(tmp_path / "run/checkpoints/step_0000006")
    model = open_model(tmp_path / "run", device=CPU, ema=True).model
    assert torch.equal(model.norm.weight, average["norm.weight"])
    assert not torch.equal(model.norm.weight, open_model(tmp_path / "run", device=CPU).model.norm.weight)
    with pytest.raises(CheckpointError, match="no average of the weights"):
        open_model(tmp_path / "plain", device=CPU, ema=True)


def test_weights_come_back_bit_by_bit_after_an_error():
    model = torch.nn.Linear(3, 3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    average = WeightAverage(model, 0.9)
    with torch.no_grad():
        model.weight.mul_(3)
    changed = model.weight.detach().clone()
    with pytest.raises(ValueError, match="stop"), average.in_place_of_weights():
        assert torch.equal(model.weight, before["weight"])
        raise ValueError("stop")
    assert torch.equal(model.weight, changed)
    average.update()
    torch.testing.assert_close(average.values["weight"], 0.9 * before["weight"] + 0.1 * changed)
