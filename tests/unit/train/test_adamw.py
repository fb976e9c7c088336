"""AdamW with moments in bf16: rounding is right on average, and the training is that of fp32."""

import pytest
import torch
from torch import nn

from groundup.train import adamw
from groundup.train.adamw import RoundedAdamW, round_stochastically_
from tests.runs import losses, make_config, make_data, run

BETAS = (0.9, 0.999)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def test_rounding_is_to_a_neighbour_and_right_on_average():
    exact = torch.rand(20_000, generator=torch.Generator().manual_seed(0)) * 8 - 4
    spacing = torch.exp2(torch.floor(torch.log2(exact.abs())) - 7)
    mean = torch.zeros_like(exact, dtype=torch.float64)
    for step in range(200):
        rounded = exact.clone()
        round_stochastically_(rounded, torch.tensor(float(step)))
        assert torch.equal(rounded, rounded.bfloat16().float())
        assert bool(((rounded - exact).abs() < spacing).all())
        mean += rounded / 200
    error = (mean - exact) / spacing
    assert error.std().item() == pytest.approx((1 / 6 / 200) ** 0.5, rel=0.05)  # that of independent draws
    assert abs(error.mean().item()) < 1e-3


def test_what_bf16_holds_stays_as_it_is():
    held = torch.tensor([0.0, -0.0, 1.5, -3.0, float("inf"), float("-inf")])
    for step in range(50):
        rounded = held.clone()
        round_stochastically_(rounded, torch.tensor(float(step)))
        assert torch.equal(rounded, held)


def a_parameter(size=1000):
    generator = torch.Generator().manual_seed(1)
    return nn.Parameter(torch.randn(size, generator=generator)), generator


def step(optimizer, parameter, gradient):
    parameter.grad = gradient
    optimizer.step()
    return optimizer.state[parameter]["exp_avg_sq"].float()


def test_a_second_moment_decays_where_rounding_to_the_nearest_would_hold_it():
    """After one large gradient it loses a thousandth a step: less than half of bf16's spacing."""
    parameter, generator = a_parameter()
    optimizer = RoundedAdamW([{"params": [parameter]}], lr=1e-3, betas=BETAS, eps=1e-8)
    first = step(optimizer, parameter, torch.randn(parameter.shape, generator=generator))
    for _ in range(500):
        last = step(optimizer, parameter, torch.zeros_like(parameter))
    assert (first * 0.999).bfloat16().equal(first.bfloat16())  # it would stay
    assert (last / first).mean().item() == pytest.approx(0.999**500, rel=0.02)


@pytest.mark.parametrize("bucket", [1 << 20, 300])
def test_updates_are_those_of_torch_but_for_rounding(monkeypatch, bucket):
    monkeypatch.setitem(adamw._BUCKET, "cpu", bucket)  # 300: several pieces of one parameter
    ours, generator = a_parameter()
    theirs = nn.Parameter(ours.detach().clone())
    settings = {"lr": 1e-2, "betas": BETAS, "eps": 1e-8}
    optimizer = RoundedAdamW([{"params": [ours], "weight_decay": 0.1}], **settings)
    reference = torch.optim.AdamW([theirs], weight_decay=0.1, fused=True, **settings)
    for number in range(1, 41):
        gradient = torch.randn(ours.shape, generator=generator)
        step(reference, theirs, gradient)
        step(optimizer, ours, gradient.clone())
        assert optimizer.state[ours]["step"].item() == number
        # One update is at most about lr; a moment is off by 2^-8 of itself at most.
        assert (ours - theirs).abs().max().item() < 1e-2 * 2**-7 * number
    moments = optimizer.state[ours]
    assert moments["exp_avg"].dtype == moments["exp_avg_sq"].dtype == torch.bfloat16


@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_a_run_learns_as_with_fp32_and_resumes_exactly(data, tmp_path, beta2):
    base = (
        "num_steps=60",
        "optimizer.lr=3e-3",
        f"optimizer.beta2={beta2}",
        "log.interval=1",
        "schedule_steps=60",
    )
    bf16 = (*base, "optimizer.state_dtype=bf16")
    exact = losses(run(make_config(data, tmp_path / "fp32", *base)))
    whole = losses(run(make_config(data, tmp_path / "bf16", *bf16)))
    assert whole != exact
    # Other seeds differ by 2e-2 here.
    assert whole == pytest.approx(exact, rel=2e-3)
    run(make_config(data, tmp_path / "cut", *bf16, "num_steps=30"))
    assert losses(run(make_config(data, tmp_path / "cut", *bf16))) == whole


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_the_format_may_change_when_a_run_goes_on(data, tmp_path, kind):
    key = "optimizer.adamw.state_dtype" if kind == "muon" else "optimizer.state_dtype"
    base = (f"optimizer.kind={kind}", "schedule_steps=6")
    whole = losses(run(make_config(data, tmp_path / "whole", *base)))
    for first, then in (("fp32", "bf16"), ("bf16", "fp32")):
        folder = tmp_path / first
        run(make_config(data, folder, *base, f"{key}={first}", "num_steps=3"))
        changed = losses(run(make_config(data, folder, *base, f"{key}={then}")))
        assert changed == pytest.approx(whole, rel=1e-4)
