"""Rotary positions, and how they are scaled to longer contexts than the model was first trained on.

Shapes: B batch, T tokens, N heads, H head dim.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from groundup.core.config import ByKind, config
from groundup.core.config_class import Size

Factor = Annotated[float, Field(ge=1)]


@config
class NoRopeScaling:
    """No scaling."""

    kind: Literal["none"] = "none"

    def scaled(self, frequencies: Tensor) -> Tensor:
        """The same frequencies."""
        return frequencies


@config
class LinearRopeScaling:
    """Positions divided by a factor (position interpolation, Chen et al. 2023, arXiv:2306.15595).

    Attributes:
        factor: How many times longer the context becomes.
    """

    kind: Literal["linear"] = "linear"
    factor: Factor

    def scaled(self, frequencies: Tensor) -> Tensor:
        """Frequencies that turn as far at position ``factor * p`` as they did at p."""
        return frequencies / self.factor


@config
class Llama3RopeScaling:
    """Slow frequencies divided by a factor, fast ones kept, those between blended: Llama 3.1 and later.

    As in Meta's ``apply_scaling`` (github.com/meta-llama/llama-models, models/llama3/model.py). Frequencies
    are told apart by how many times they turn within the original context, L f / 2 pi: up to
    ``low_frequency_factor`` they are slow, from ``high_frequency_factor`` on they are fast.

    Attributes:
        factor: What slow frequencies are divided by.
        low_frequency_factor: Turns.
        high_frequency_factor: Turns; more than ``low_frequency_factor``.
        original_max_sequence_length: L, the context before it was extended.
    """

    kind: Literal["llama3"] = "llama3"
    factor: Factor
    low_frequency_factor: Annotated[float, Field(gt=0)] = 1.0
    high_frequency_factor: Annotated[float, Field(gt=0)] = 4.0
    original_max_sequence_length: Size = 8192

    def __post_init__(self) -> None:
        """Refuses frequencies that would be slow and fast at once."""
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"high_frequency_factor {self.high_frequency_factor} is not more than"
                f" low_frequency_factor {self.low_frequency_factor}"
            )

    def scaled(self, frequencies: Tensor) -> Tensor:
        """Frequencies, each divided by between 1 and ``factor``."""
        turns = self.original_max_sequence_length * frequencies / (2 * math.pi)
        between = self.high_frequency_factor - self.low_frequency_factor
        kept = ((turns - self.low_frequency_factor) / between).clamp(0, 1)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


RopeScaling = Annotated[NoRopeScaling | LinearRopeScaling | Llama3RopeScaling, ByKind]


class Rope:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864), rotating halves as Llama and Hugging Face do.

    Args:
        head_dim: H, even; of a head that is rotated in part, the dimensions that are.
        base: The slowest wave length is about 2 pi base.
        scaling: Of the frequencies.
    """

    def __init__(self, head_dim: int, base: float, scaling: RopeScaling) -> None:
        self.head_dim = head_dim
        self.base = base
        self.scaling = scaling

    def angles(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, 1, T, H] of the rotation at each position, in fp32."""
        exponents = torch.arange(0, self.head_dim, 2, device=positions_BT.device).float() / self.head_dim
        frequencies = self.scaling.scaled(1.0 / self.base**exponents)
        angles_BTh = positions_BT.float().unsqueeze(-1) * frequencies
        angles_B1TH = torch.cat((angles_BTh, angles_BTh), dim=-1).unsqueeze(1)
        return angles_B1TH.cos(), angles_B1TH.sin()


def rotate(x_BNTH: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates each (i, i + R/2) pair of a head's first R dimensions by its position's angle; R as angles."""
    cos, sin = angles
    if (rotated := cos.shape[-1]) < x_BNTH.shape[-1]:
        rest_BNTh = x_BNTH[..., rotated:]
        return torch.cat((rotate(x_BNTH[..., :rotated], angles), rest_BNTh), dim=-1)
    first, second = x_BNTH.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x_BNTH * cos + turned * sin).to(x_BNTH.dtype)
