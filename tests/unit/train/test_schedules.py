"""Schedules stay in [0, 1], join without a jump, and end where they say."""

import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groundup.tokens.sampling.batch_ramp import BatchRamp, BatchSizes
from groundup.train.adamw import AdamW
from groundup.train.optim import Optimizers
from groundup.train.schedules import lr_ratio
from groundup.train.schedules.constant import Constant
from groundup.train.schedules.cosine import Cosine
from groundup.train.schedules.inverse_sqrt import InverseSqrt
from groundup.train.schedules.linear import Linear
from groundup.train.schedules.warmup import Fraction, LengthIn, Samples, Steps, Tokens
from tests.instances import SCHEDULES


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@given(horizon=st.integers(1, 5000), share=st.floats(0, 0.9))
def test_in_range_and_continuous(schedule, horizon, share):
    warmup = share * horizon
    ratios = [
        lr_ratio(schedule, step, warmup=warmup, horizon=horizon) for step in range(1, min(horizon, 400) + 1)
    ]
    assert all(0 <= ratio <= 1 for ratio in ratios)
    steepest = 1 / max(warmup, 1) + 20 / max(1, horizon - warmup) ** 0.5
    assert all(abs(b - a) <= steepest for a, b in itertools.pairwise(ratios))


@pytest.mark.parametrize(
    ("schedule", "last"),
    list(zip(SCHEDULES, [0.1, 0.0, 1.0, 0.05, 0.0, 0.1, 0.0, 0.4], strict=True)),
    ids=lambda value: repr(value),
)
def test_peak_and_end(schedule, last):
    at = {step: lr_ratio(schedule, step, warmup=100, horizon=1000) for step in (1, 50, 100, 1000, 5000)}
    assert at[1] == pytest.approx(0.01)
    assert at[50] == pytest.approx(0.5)
    assert at[100] == pytest.approx(1.0)
    assert at[1000] == pytest.approx(last)
    assert at[5000] == pytest.approx(last)


def test_cosine_is_half_way_in_the_middle():
    middle = lr_ratio(Cosine(min_ratio=0.2), 550, warmup=100, horizon=1000)
    assert middle == pytest.approx(0.6)


def test_warmup_by_steps_fraction_tokens_and_samples():
    steps = LengthIn("steps", BatchSizes(512), sequence_length=1024)
    assert Steps(steps=715).length(19073, steps) == 715
    assert Fraction(fraction=0.01).length(320000, steps) == 3200
    assert Tokens(tokens=375e6).length(19073, steps) == pytest.approx(715.26, abs=0.01)
    assert Samples(samples=1024).length(19073, steps) == 2


def test_warmup_in_samples():
    ramp = BatchRamp(start=8, increment=8, samples=16)  # two steps of 8 samples, then of 16
    samples = LengthIn("samples", BatchSizes(16, ramp), sequence_length=10)
    assert Steps(steps=3).length(500, samples) == 32
    assert Fraction(fraction=0.01).length(550, samples) == 5.5
    assert Tokens(tokens=75).length(500, samples) == 7.5
    assert Samples(samples=33).length(500, samples) == 33


def _schedule(config):
    low = config["min_lr"] / config["max_lr"]
    return {
        "cosine": Cosine(min_ratio=low),
        "linear": Linear(min_ratio=low),
        "inverse-square-root": InverseSqrt(min_ratio=low),
        "constant": Constant(),
    }[config["lr_decay_style"]]


@pytest.fixture(scope="module")
def recorded(shared_data):
    path = shared_data.parent / "reference" / "megatron" / "misc" / "lr_wd_schedules.json"
    if not path.is_file():
        pytest.skip(f"no reference schedules at {path}")
    return json.loads(path.read_text())


def test_all_schedules_that_megatron_recorded(recorded):
    assert {one["config"]["lr_decay_style"] for one in recorded} >= {"cosine", "linear", "constant"}
    for one in recorded:
        config, schedule = one["config"], _schedule(one["config"])
        weight = torch.nn.Parameter(torch.ones(2, 2))
        bias = torch.nn.Parameter(torch.ones(2))
        adamw = AdamW(
            lr=config["max_lr"],
            weight_decay=config["end_wd"],
            weight_decay_start=None if config["wd_incr_style"] == "constant" else config["start_wd"],
            weight_decay_shape="cosine" if config["wd_incr_style"] == "cosine" else "linear",
        )
        optimizers = Optimizers(adamw, {"weight": weight, "bias": bias})
        for samples, lr, decay, other_decay in one["trace"]:
            optimizers.set_rates(
                lr_ratio=lr_ratio(
                    schedule, samples, warmup=config["lr_warmup_steps"], horizon=config["lr_decay_steps"]
                ),
                progress=min(1.0, samples / config["wd_incr_steps"]),
            )
            groups = list(optimizers._groups())
            assert [group["lr"] for group in groups] == pytest.approx([lr, lr], rel=1e-13)
            assert [group["weight_decay"] for group in groups] == pytest.approx(
                [decay, other_decay], rel=1e-13
            )
