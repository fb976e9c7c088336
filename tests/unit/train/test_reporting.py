"""What a run reports besides its losses: samples, validation, TensorBoard, the log file."""

import dataclasses
import math

import orjson
import pytest

from groundup.cli.train import run_training
from groundup.core import log
from groundup.core.errors import DataError
from groundup.tokens.sampling.collate import Evaluation
from groundup.tokens.sampling.splits import open_splits
from groundup.train.setup import build_run
from tests.runs import make_config, make_data, run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def test_samples_validation_tensorboard_and_log(data, tmp_path):
    config = make_config(
        data,
        tmp_path / "run",
        "sample.interval=3",
        "sample.prompt=the cat",
        "sample.max_new_tokens=5",
        "validation.interval=2",
        "validation.num_batches=2",
        "log.tensorboard=true",
    )
    log.set_up()
    results = run_training(config)
    records = [orjson.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_bytes().splitlines()]
    samples = [record for record in records if record["kind"] == "sample"]
    assert [record["step"] for record in samples] == [3, 6]
    assert all(record["text"].startswith("the cat") and len(record["text"]) > 7 for record in samples)
    validations = {record["step"]: record for record in records if record["kind"] == "validation"}
    assert list(validations) == [2, 4, 6]
    assert {record["num_tokens"] for record in validations.values()} == {2 * 2 * 32}  # at the end too
    for record in validations.values():
        assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))
        assert 0 < record["bits_per_byte"] < 8
    assert {name: found.num_tokens for name, found in results.items()} == {
        "validation": 2 * 2 * 32,
        "test": 2 * 2 * 32,
    }
    assert list((tmp_path / "run/tensorboard").glob("events.out.tfevents.*"))
    text = (tmp_path / "run/train.log").read_text()
    assert "loss at initialisation" in text
    assert "tokens/s" in text


def test_no_validations_are_none_at_the_end_either(data, tmp_path):
    def evaluate(run, dataset, num_batches):
        raise AssertionError("nobody asked for it")

    config = make_config(data, tmp_path / "run", "validation.interval=0", "validation.num_batches=2")
    records = run(config, evaluate=evaluate)
    assert {record["kind"] for record in records} == {"train"}


def test_validations_in_megatron_order_read_on_where_the_last_one_ended(data, tmp_path):
    read = []

    def evaluate(run, dataset, num_batches):
        read.append(dataset.samples.batch(0, num_batches * 2, ordered=True).tolist())
        return Evaluation(total_loss=1.0, num_tokens=1, num_bytes=1)

    settings = (
        "data.order=megatron",
        "data.split=60,30,10",
        "validation.interval=2",
        "validation.num_batches=2",
    )
    config = make_config(data, tmp_path / "run", *settings)
    run(config, evaluate=evaluate)
    splits = build_run(dataclasses.replace(config, run_dir=tmp_path / "other")).data
    planned = splits.validation.samples.batch(0, 16).tolist()  # 6 // 2 + 1 validations of 4 samples
    assert read[:2] == [planned[0:4], planned[4:8]]
    assert read[2:] == [
        planned[12:16],
        splits.test.samples.batch(0, 4).tolist(),
    ]  # at the end: that of step 6 is left out
    with pytest.raises(DataError, match="beyond the"):
        splits.validation.samples.batch(0, 1000)


def test_no_number_of_batches_is_the_whole_split(data, tmp_path):
    settings = ("num_steps=1", "validation.interval=100", "validation.num_batches=0")
    config = make_config(data, tmp_path / "run", *settings)
    splits = open_splits(config.data, seed=config.seed, num_samples=config.num_samples)
    results = run_training(config)
    assert results["validation"].num_tokens == splits.validation.num_samples * 32
    assert results["test"].num_tokens == splits.test.num_samples * 32


def test_a_loss_of_bits_per_byte_is_the_loss_of_the_bytes(data, tmp_path):
    """bits per byte x bytes = nats x tokens / ln 2, the bytes counted from the text itself."""
    results = run_training(make_config(data, tmp_path / "run", "validation.interval=6"))
    validation = results["validation"]
    assert validation.total_loss == pytest.approx(validation.loss * validation.num_tokens)
    assert validation.bits_per_byte * validation.num_bytes == pytest.approx(
        validation.total_loss / math.log(2)
    )
