"""Scaled rotary positions, by hand."""

import math
from typing import Any

import pytest
import torch

from groundup.core.config import from_dict, to_dict
from groundup.core.errors import ConfigError
from groundup.models.llama import LlamaConfig
from groundup.models.rope import LinearRopeScaling, Llama3RopeScaling, NoRopeScaling, Rope
from tests.instances import MODELS


def test_without_scaling_the_angles_are_those_of_the_paper() -> None:
    positions = torch.tensor([[0, 1, 50]])
    cos, sin = Rope(8, 10000.0, NoRopeScaling()).angles(positions)
    exponents = torch.arange(0, 8, 2).float() / 8
    angles = positions.float().unsqueeze(-1) * 10000.0**-exponents
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    assert torch.equal(cos, angles.cos())
    assert torch.equal(sin, angles.sin())


def test_linear_scaling_divides_positions() -> None:
    scaled = Rope(8, 10000.0, LinearRopeScaling(factor=4)).angles(torch.tensor([[0, 4, 400]]))
    plain = Rope(8, 10000.0, NoRopeScaling()).angles(torch.tensor([[0, 1, 100]]))
    for found, expected in zip(scaled, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_llama3_scaling_by_hand() -> None:
    scaling = Llama3RopeScaling(factor=8, original_max_sequence_length=8192)
    turns = torch.tensor([100.0, 4.0, 3.0, 2.5, 1.0, 0.01], dtype=torch.float64)
    frequencies = turns * 2 * math.pi / 8192
    # 4 turns and more are kept, 1 and fewer divided by 8; at 3 turns two thirds are kept, at 2.5 a half
    divisors = torch.tensor([1, 1, 1 / (2 / 3 + 1 / 24), 1 / (1 / 2 + 1 / 16), 8, 8], dtype=torch.float64)
    torch.testing.assert_close(scaling.scaled(frequencies), frequencies / divisors, rtol=1e-12, atol=0)


def test_llama3_scaling_of_llama_31() -> None:
    """With base 500,000 and heads of 128 numbers: the longest wave 8 times as long, the shortest the same."""
    frequencies = 500000.0 ** -(torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    ratio = frequencies / Llama3RopeScaling(factor=8).scaled(frequencies)
    waves = 2 * math.pi / frequencies
    assert torch.equal(ratio == 1, waves <= 8192 / 4)
    torch.testing.assert_close(ratio[waves >= 8192], torch.full_like(ratio[waves >= 8192], 8.0))
    assert (ratio.diff() >= -1e-12).all()
    blended = (waves > 8192 / 4) & (waves < 8192)
    assert blended.sum() == 6
    assert ((ratio[blended] > 1) & (ratio[blended] < 8)).all()


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"kind": "yarn", "factor": 4}, "yarn"),
        ({"kind": "linear", "factor": 0.5}, "rope_scaling.*factor"),
        ({"kind": "linear"}, "factor"),
        ({"kind": "llama3", "factor": float("nan")}, "factor"),
        ({"kind": "llama3", "factor": 8, "low_frequency_factor": 4}, "high_frequency_factor 4.0 is not more"),
        ({"kind": "llama3", "factor": 8, "original_max_sequence_length": 0}, "original_max_sequence_length"),
    ],
)
def test_a_scaling_that_cannot_be_is_refused(scaling: dict[str, Any], message: str) -> None:
    tree = {**to_dict(MODELS["llama"]), "rope_scaling": scaling}
    with pytest.raises(ConfigError, match=message):
        from_dict(LlamaConfig, tree, where="run.yaml")


@pytest.mark.parametrize("scaling", [LinearRopeScaling(factor=2), Llama3RopeScaling(factor=32)])
def test_scalings_survive_as_plain_values(scaling: LinearRopeScaling | Llama3RopeScaling) -> None:
    tree = {**to_dict(MODELS["llama"]), "rope_scaling": to_dict(scaling)}
    config = from_dict(LlamaConfig, tree, where="run.yaml")
    assert config.rope_scaling == scaling
    assert to_dict(config) == tree
