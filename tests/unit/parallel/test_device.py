"""fp16's loss scale moves as Megatron-LM's; a format that the hardware lacks is refused."""

import json

import pytest
import torch

from groundup.core.errors import MachineError
from groundup.parallel.device import LossScaleConfig, LossScaler, choose_precision


def test_scaler_follows_megatrons_trace(shared_data):
    recorded = json.loads((shared_data.parent / "reference/megatron/misc/loss_scaler.json").read_text())
    for case in recorded:
        given = case["config"]
        assert (given["growth_factor"], given["backoff_factor"]) == (2.0, 0.5)
        scaler = LossScaler(
            LossScaleConfig(
                initial=given["initial_scale"],
                minimum=given["min_scale"],
                window=given["growth_interval"],
                hysteresis=given["hysteresis"],
            )
        )
        for overflow, after in zip(case["found_inf"], case["after"], strict=True):
            scaler.update(overflow=overflow)
            assert [scaler.scale, scaler.steps_without_overflow, scaler.hysteresis] == after


def test_scaler_grows_after_a_window_and_forgives_again():
    scaler = LossScaler(LossScaleConfig(initial=8, window=3, hysteresis=2))
    scaler.update(overflow=True)
    assert scaler.scale == 8
    for _ in range(3):
        scaler.update(overflow=False)
    assert scaler.scale == 16
    scaler.update(overflow=True)
    assert scaler.scale == 16
    scaler.update(overflow=True)
    assert scaler.scale == 8


def test_scaler_state_round_trip():
    scaler = LossScaler(LossScaleConfig(initial=64, hysteresis=1))
    scaler.update(overflow=True)
    other = LossScaler(LossScaleConfig())
    other.load(scaler.state())
    assert other.state() == {"scale": 32, "steps_without_overflow": 0, "hysteresis": 0}


@pytest.mark.parametrize(
    ("capabilities", "auto", "refused"),
    [
        ({"avx512_bf16": True}, "bf16", "fp16"),
        ({"amx_bf16": True, "amx_fp16": True}, "bf16", None),
        ({}, "fp32", "bf16"),
    ],
)
def test_auto_takes_what_the_cpu_has(monkeypatch, capabilities, auto, refused):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    cpu = torch.device("cpu")
    assert choose_precision("auto", cpu).name == auto
    assert choose_precision("fp32", cpu).name == "fp32"
    if refused:
        with pytest.raises(MachineError, match=f"precision {refused}: this CPU has no {refused}"):
            choose_precision(refused, cpu)


def test_volta_gets_fp16_and_no_bf16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100-SXM2-32GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    cuda = torch.device("cuda")
    assert choose_precision("auto", cuda).name == "fp16"
    for name in ("bf16", "fp8"):
        with pytest.raises(MachineError, match=f"Tesla V100-SXM2-32GB has no {name} units"):
            choose_precision(name, cuda)


def test_fp8_came_with_ada_and_is_never_chosen(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    cuda = torch.device("cuda")
    assert choose_precision("auto", cuda).name == "bf16"
    assert choose_precision("fp8", cuda).name == "fp8"
    assert choose_precision("fp8", cuda).dtype == torch.bfloat16
