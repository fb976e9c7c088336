"""The chunked loss is the plain one, in value and gradient."""

import pytest
import torch

from groundup.train import loss as loss_module
from groundup.train.loss import IGNORE, linear_cross_entropy


def inputs(num_tokens, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_tokens, 16, dtype=dtype, generator=generator).requires_grad_()
    head = torch.randn(128, 16, dtype=dtype, generator=generator).requires_grad_()
    targets = torch.randint(100, (num_tokens,), generator=generator)
    targets[::7] = IGNORE
    return hidden, head, targets


@pytest.mark.parametrize("num_tokens", [1, 130, 300])
def test_equal_to_cross_entropy_over_the_true_vocabulary(monkeypatch, num_tokens):
    monkeypatch.setattr(loss_module, "ROWS", 256)
    hidden, head, targets = inputs(num_tokens)
    expected = torch.nn.functional.cross_entropy(
        hidden @ head[:100].T, targets, ignore_index=IGNORE, reduction="sum"
    )
    expected_gradients = torch.autograd.grad(expected, (hidden, head))
    actual = linear_cross_entropy(hidden, head, targets, vocab_size=100)
    gradients = torch.autograd.grad(actual * 3, (hidden, head))
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=1e-6)
    for a, b in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a, 3 * b, rtol=1e-9, atol=1e-9)
    assert gradients[1][100:].abs().sum() == 0  # padded ids learn nothing


def test_only_ignored_targets_cost_nothing():
    hidden, head, _ = inputs(4)
    loss = linear_cross_entropy(hidden, head, torch.full((4,), IGNORE), vocab_size=100)
    loss.backward()
    assert loss.item() == 0
    assert hidden.grad.abs().sum() == 0


def test_improbable_targets_keep_a_finite_exact_loss():
    hidden = torch.tensor([[300.0]])
    head = torch.tensor([[1.0], [0.0], [-1.0]])
    loss = linear_cross_entropy(hidden, head, torch.tensor([2]), vocab_size=3)
    assert loss.item() == pytest.approx(600.0)


def test_autocast_computes_in_its_dtype_within_rounding():
    hidden, head, targets = inputs(300, torch.float32)
    exact = linear_cross_entropy(hidden, head, targets, vocab_size=100)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = linear_cross_entropy(hidden, head, targets, vocab_size=100)
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(exact.item(), rel=5e-3)
    assert rounded.item() != exact.item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_gpu_compiles_is_what_a_cpu_computes(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(70, 128, generator=generator)).to(dtype)
    targets = torch.randint(100, (70,), generator=generator)
    targets[::7] = IGNORE
    expected, found = logits.clone(), logits.clone()
    loss = loss_module._softmax_in_place(expected, targets, 100, exact=True)
    assert loss_module._softmax_of_rows(found, targets, 100).item() == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-7)
    assert found[::7].abs().max() == 0 and found[:, 100:].abs().max() == 0
