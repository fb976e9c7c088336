"""Lines to the letter of Megatron-LM's, and read by the expressions with which people read its logs."""

import datetime
import re

import pytest
import torch

from groundup.train.megatron_lines import Interval, memory_line, phases_line, training_line, validation_lines
from tests.runs import make_config, make_data, records_of, run

NOW = datetime.datetime(2026, 8, 22, 15, 22, 21, 1234)
W2 = Interval(
    iteration=100,
    num_iterations=320000,
    samples=800,
    seconds=0.9633,
    lr=3.937e-06,
    batch_size=8,
    loss=8.995377,
    loss_scale=131072.0,
    grad_norm=2.3456,
    skipped=15,
    nan=0,
)
TAIL = " number of skipped iterations:  15 | number of nan iterations:   0 |"


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (
            "megatron",
            " iteration      100/  320000 | elapsed time per iteration (ms): 963.3 |"
            " learning rate 3.937E-06 | lm loss 8.995377E+00 | loss scale 131072.0 |"
            " consumed samples:          800 | global batch size:     8 | grad norm: 2.346 |" + TAIL,
        ),
        (
            "megatron_2023",
            " iteration      100/  320000 | consumed samples:          800 |"
            " elapsed time per iteration (ms): 963.3 | learning rate: 3.937E-06 | global batch size:     8 |"
            " lm loss: 8.995377E+00 | loss scale: 131072.0 | grad norm: 2.346 |" + TAIL,
        ),
        (
            "megatron_core",
            " [2026-08-22 15:22:21.001234] iteration      100/  320000 | consumed samples:          800 |"
            " elapsed time per iteration (ms): 963.3 | learning rate: 3.937000E-06 |"
            " global batch size:     8 | lm loss: 8.995377E+00 | loss scale: 131072.0 | grad norm: 2.346 |"
            + TAIL,
        ),
    ],
)
def test_the_line_of_an_interval(style, expected):
    assert training_line(style, W2, NOW) == expected


@pytest.mark.parametrize("style", ["megatron", "megatron_2023", "megatron_core"])
def test_an_interval_without_an_update_has_no_loss_and_no_norm(style):
    nothing = Interval(**{**vars(W2), "loss": None, "grad_norm": float("inf"), "skipped": 100, "nan": 3})
    line = training_line(style, nothing, NOW)
    assert "lm loss" not in line
    assert "grad norm" not in line
    assert line.endswith(" number of skipped iterations: 100 | number of nan iterations:   3 |")


def test_the_lines_of_a_validation():
    lines = validation_lines("megatron", 3.25, split="validation", iteration=1000, is_last=False).split("\n")
    expected = (
        " validation loss at iteration 1000 | lm loss value: 3.250000E+00 | lm loss PPL: 2.579034E+01 | "
    )
    assert lines == ["-" * (len(expected) + 1), expected, "-" * (len(expected) + 1)]
    ends = {
        ("megatron_2023", "validation"): "the end of training for val data",
        ("megatron_2023", "test"): "the end of training for test data",
        ("megatron_core", "validation"): "iteration 5 on validation set",
        ("megatron_core", "test"): "iteration 5 on test set",
    }
    for (style, split), at in ends.items():
        lines = validation_lines(style, 21.0, split=split, iteration=5, is_last=True)
        assert (
            f" validation loss at {at} | lm loss value: 2.100000E+01 | lm loss PPL: 4.851652E+08 | " in lines
        )


def test_memory_and_phases():
    cpu = torch.device("cpu")
    number = r"[\d.]+"
    shown = rf"memory \(MB\) \| allocated: {number} \| max allocated: {number}"
    assert re.fullmatch(
        rf"after 100 iterations {shown} \| cached: {number} \| max cached: {number}",
        memory_line("megatron", 100, cpu),
    )
    assert re.fullmatch(
        rf"\[Rank 0\] \(after 100 iterations\) {shown} \| reserved: {number} \| max reserved: {number}",
        memory_line("megatron_2023", 100, cpu),
    )
    assert (
        phases_line({"forward": 1.5, "optimizer": 0.25}, 10)
        == "time (ms) | forward: 150.00 | optimizer: 25.00"
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    "style", ["megatron", pytest.param("megatron_core", marks=pytest.mark.exhaustive)]
)  # "megatron_2023" is compared with a log of Megatron-LM's in test_megatron_trace.py
def test_logs_are_read_as_people_read_them(data, tmp_path, capsys, style):
    settings = ("log.interval=2", "validation.interval=4", "schedule_unit=samples", "warmup.steps=3")
    config = make_config(data, tmp_path / "run", f"log.style={style}", *settings)
    records = run(config)
    written = capsys.readouterr().out
    found = re.findall(r"iteration +(\d+)/ +(\d+) \|.*lm loss:? ([\d.E+-]+) \|", written)
    losses = {record["step"]: record["loss"] for record in records if record["kind"] == "train"}
    assert {int(step): float(loss) for step, _, loss in found} == pytest.approx(losses, rel=1e-6)
    assert {of for _, of, _ in found} == {"6"}
    rates = [float(rate) for rate in re.findall(r"learning rate:? ([\d.E+-]+)", written)]
    peak = config.optimizer.lr
    assert rates[0] == pytest.approx(peak * 2 / 3, rel=1e-3)  # of the third update, after two
    fields = dict(field.split(":") for field in written.splitlines()[0].split("|") if field.count(":") == 1)
    assert int(fields[" consumed samples"]) == 8
    assert int(fields[" number of skipped iterations"]) == 0
    assert float(fields[" elapsed time per iteration (ms)"]) > 0
    validations = re.findall(
        r"validation loss at iteration (\d+) \| lm loss value: ([\d.E+-]+) \| lm loss PPL: ([\d.E+-]+)",
        written,
    )
    [(step, loss, perplexity)] = validations
    of_validation = next(record for record in records_of(config) if record["kind"] == "validation")
    assert int(step) == of_validation["step"] == 4
    assert float(loss) == pytest.approx(of_validation["loss"], rel=1e-6)
    assert float(perplexity) == pytest.approx(of_validation["perplexity"], rel=1e-6)
    assert written.count("memory (MB)") == 1
    assert (
        f"  successfully saved checkpoint at iteration {6:7d} to {tmp_path / 'run' / 'checkpoints'}"
        in written
    )
    phases = re.findall(r"time \(ms\)((?: \| [a-z ]+: [\d.]+)+)", written)
    assert len(phases) == (3 if style == "megatron" else 0)
    for line in phases:
        assert {"batch generator", "forward", "backward", "optimizer"} == set(
            re.findall(r"\| ([a-z ]+):", line)
        )
