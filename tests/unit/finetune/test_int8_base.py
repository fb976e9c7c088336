"""Adapters on weights of 8 bits: what they compute, learn and save, and where they are refused."""

import copy
import shutil

import pytest
import torch

from groundup.core.errors import ConfigError, MachineError
from groundup.finetune.int8_base import Int8LowRankLinear, as_float, round_base
from groundup.finetune.lora import LoraConfig, add_adapters, fill_adapters, with_adapters_merged
from groundup.parallel.low_rank_linear import LowRankLinear
from tests.grpo import grpo_config, make_prompts, run_grpo, samples_of
from tests.runs import losses
from tests.tiny import tiny_model

RANK, INT8 = 4, "lora.base_weights=int8"


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Of the adapters; the loss is a sum of squares."""
    model.zero_grad()
    tokens_BT = torch.arange(48).view(2, 24)
    model(tokens_BT).float().square().mean().backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.fixture(scope="module", params=["gpt2", "llama-grouped-tied"])
def models(request) -> tuple[torch.nn.Module, torch.nn.Module, torch.nn.Module]:
    """One with adapters; the same with weights of 8 bits; and with these, as floats."""
    loaded = tiny_model(request.param)
    model, lora = loaded.model, LoraConfig(rank=RANK)
    add_adapters(model, loaded.config, lora)
    fill_adapters(model, seed=0)
    for name, parameter in model.named_parameters():
        if name.endswith(".lora_b"):
            torch.nn.init.normal_(parameter, std=0.1)
    rounded = copy.deepcopy(model)
    round_base(rounded)
    floats = copy.deepcopy(model)
    for (name, one), (_, other) in zip(rounded.named_modules(), floats.named_modules(), strict=True):
        if isinstance(one, LowRankLinear):
            assert isinstance(one, Int8LowRankLinear), name
            assert one.weight.qdata.dtype == torch.int8
            other.weight = torch.nn.Parameter(as_float(one.weight).clone(), requires_grad=False)
    return model, rounded, floats


def test_gradients_are_those_of_the_same_weights_as_floats(models) -> None:
    _, rounded, floats = models
    found, wanted = gradients(rounded), gradients(floats)
    assert found.keys() == wanted.keys() and all(".lora_" in name for name in found)
    for name, gradient in wanted.items():
        assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm(), name
    with torch.autocast("cpu", torch.bfloat16):
        coarse = [gradients(rounded), gradients(floats)]
    errors = [sum(float((each[name] - wanted[name]).norm() ** 2) for name in wanted) for each in coarse]
    assert 0 < errors[0] < 4 * errors[1]  # rounded as the products of floats are


def test_what_is_rounded_is_near_and_merged_is_applied(models) -> None:
    model, rounded, floats = models
    tokens_BT = torch.arange(48).view(2, 24)
    with torch.inference_mode():
        wanted_BTD, found_BTD = model(tokens_BT), rounded(tokens_BT)
    assert 0 < (found_BTD - wanted_BTD).norm() < 0.05 * wanted_BTD.norm()
    merged = with_adapters_merged(dict(rounded.named_parameters()), 16.0 / RANK)
    expected = with_adapters_merged(dict(floats.named_parameters()), 16.0 / RANK)
    for name, weight in expected.items():
        torch.testing.assert_close(merged[name], weight)


def test_a_run_learns_on_it_and_resumes_bit_by_bit(tmp_path) -> None:
    folder = make_prompts(tmp_path)
    settings = ("lora.rank=4", "optimizer.lr=0.01", "num_steps=2", "checkpoint.interval=1", "stage.beta=0.1")
    plain = run_grpo(grpo_config(folder, tmp_path / "float", *settings))
    config = grpo_config(folder, tmp_path / "int8", *settings, INT8)
    records = run_grpo(config)
    assert samples_of(config)
    assert records[0]["grad_norm"] != plain[0]["grad_norm"]
    assert records[0]["kl"] == 0 < records[1]["kl"]
    shutil.rmtree(config.run_dir / "checkpoints/step_0000002")
    again = run_grpo(config)
    assert losses(again) == losses(records)
    assert [one["kl"] for one in again] == [one["kl"] for one in records]


def test_where_it_cannot_be_is_said(tmp_path, monkeypatch) -> None:
    folder = make_prompts(tmp_path)
    with pytest.raises(ConfigError, match=r"lora\.base_weights=int8: .*not spread over ranks"):
        grpo_config(folder, tmp_path / "run", "lora.rank=4", INT8, "layout.dp=2").learning()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MachineError, match=r"needs torchao.*pip install 'groundup\[int8\]'"):
        grpo_config(folder, tmp_path / "run", "lora.rank=4", INT8).learning()
