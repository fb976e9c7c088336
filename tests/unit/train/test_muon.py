"""Muon in stacks: the updates of PyTorch's own, one by one."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from groundup.train import muon
from groundup.train.muon import BatchedMuon, orthogonalized

SHAPES = [(48, 48)] * 5 + [(96, 48)] * 3 + [(48, 96)] * 2 + [(48, 64)]
SETTINGS = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}


def matrices(seed: int, scale: float = 1.0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator) * scale) for shape in SHAPES]


def step(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor], seed: int) -> None:
    for number, (weight, gradient) in enumerate(zip(weights, matrices(seed, 1e-3), strict=True)):
        weight.grad = None if number == 2 and seed < 102 else gradient.detach()  # one begins later
    optimizer.step()


@pytest.mark.parametrize("numbers_of_a_stack", [1 << 20, 2 * 48 * 48, 1], ids=["one", "two", "each"])
def test_updates_are_those_of_pytorch(numbers_of_a_stack: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for bf16's rounding, whose error is a few 2^-9 of an update."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})  # as theirs supposes
    monkeypatch.setitem(muon._STACK, "cpu", numbers_of_a_stack)
    expected, found = matrices(1), matrices(1)
    theirs = torch.optim.Muon(expected, adjust_lr_fn="match_rms_adamw", **SETTINGS)
    ours = BatchedMuon(found, **SETTINGS)
    for seed in range(100, 105):
        before = [weight.detach().clone() for weight in expected]
        step(theirs, expected, seed)
        step(ours, found, seed)
        for number, (weight, other, start) in enumerate(zip(expected, found, before, strict=True)):
            moved = weight - start
            assert bool(moved.any()) != (number == 2 and seed < 102)
            assert (other - weight).norm() <= 0.02 * moved.norm(), (seed, number)
    for weight, other in zip(expected, found, strict=True):
        assert torch.equal(ours.state[other]["momentum_buffer"], theirs.state[weight]["momentum_buffer"])
        assert ours.state[other].keys() == theirs.state[weight].keys()


@pytest.mark.parametrize("shape", [(32, 32), (64, 32), (32, 64)])
def test_singular_values_come_near_to_one(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.linspace(0.1, 1.0, 32)
    left, _, right = torch.linalg.svd(torch.randn(shape, generator=generator), full_matrices=False)
    given = [(left * values * scale) @ right for scale in (1e-6, 1.0, 1e4)]
    for update in orthogonalized([matrix.bfloat16() for matrix in given]):
        found = left.mT @ update.float() @ right.mT
        assert found.diagonal().min() > 0.5
        assert found.diagonal().max() < 1.3
        assert (found - found.diagonal().diag()).abs().max() < 0.05


def test_a_processor_without_bf16_iterates_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {capability: matrices(1)[:1] for capability in ("avx512_bf16", "avx2")}
    updates = {}
    for capability, found in weights.items():
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda name=capability: {name: True})
        before = found[0].detach().clone()
        optimizer = BatchedMuon(found, lr=0.02, momentum=0.9, weight_decay=0.0)
        found[0].grad = matrices(100)[0].detach()
        optimizer.step()
        updates[capability] = found[0].detach() - before
    given = matrices(100)[0].detach().double()  # the first momentum is a multiple of it
    exact = -0.02 * 0.2 * 48**0.5 * orthogonalized([given])[0]
    errors = {name: float((one - exact).norm() / exact.norm()) for name, one in updates.items()}
    assert errors["avx2"] < 1e-5 < 1e-4 < errors["avx512_bf16"] < 0.05


def test_a_matrix_of_zeros_stays() -> None:
    weight = nn.Parameter(torch.zeros(4, 4))
    weight.grad = torch.zeros(4, 4)
    BatchedMuon([weight], **SETTINGS).step()
    assert torch.equal(weight, torch.zeros(4, 4))
