"""The chunked log-probabilities are those of a plain softmax, in value and gradient."""

import pytest
import torch

from groundup.train import token_log_probs as module
from groundup.train.loss import IGNORE, linear_cross_entropy
from groundup.train.token_log_probs import token_log_probs


def inputs(num_tokens, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_tokens, 16, dtype=dtype, generator=generator).requires_grad_()
    head = torch.randn(128, 16, dtype=dtype, generator=generator).requires_grad_()
    targets = torch.randint(100, (num_tokens,), generator=generator)
    targets[::7] = IGNORE
    return hidden, head, targets


@pytest.mark.parametrize("num_tokens", [1, 130, 300])
def test_equal_to_log_softmax_over_the_true_vocabulary(monkeypatch, num_tokens):
    monkeypatch.setattr(module, "ROWS", 64)
    hidden, head, targets = inputs(num_tokens)
    weights = torch.randn(num_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain = torch.log_softmax(hidden @ head[:100].T, -1).gather(1, targets.clamp_min(0).unsqueeze(1))
    expected = plain.squeeze(1).where(targets != IGNORE, 0.0)
    actual = token_log_probs(hidden, head, targets, vocab_size=100)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    # A function of each that is not linear, so that gradients differ from token to token.
    wanted = torch.autograd.grad((weights * expected.exp()).sum(), (hidden, head))
    gradients = torch.autograd.grad((weights * actual.exp()).sum(), (hidden, head))
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert gradients[1][100:].abs().sum() == 0  # padded ids learn nothing


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_is_frozen_gets_no_gradient_and_the_other_the_same(frozen):
    hidden, head, targets = inputs(130)
    both = torch.autograd.grad(token_log_probs(hidden, head, targets, vocab_size=100).sum(), (hidden, head))
    (hidden, head)[frozen].requires_grad_(False)
    token_log_probs(hidden, head, targets, vocab_size=100).sum().backward()
    assert (hidden, head)[frozen].grad is None
    torch.testing.assert_close((hidden, head)[1 - frozen].grad, both[1 - frozen])


def test_autocast_agrees_with_the_language_modelling_loss():
    hidden, head, targets = inputs(300, torch.float32)
    results = []
    for loss in (
        lambda: -token_log_probs(hidden, head, targets, vocab_size=100).sum(),
        lambda: linear_cross_entropy(hidden, head, targets, vocab_size=100),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            value = loss()
        results.append((value, *torch.autograd.grad(value, (hidden, head))))
    assert results[0][0].dtype == torch.float32
    assert results[0][0].item() == pytest.approx(results[1][0].item(), rel=2e-3)
    for a, b in zip(results[0][1:], results[1][1:], strict=True):
        assert (a - b).norm() < 0.01 * b.norm()


def test_improbable_targets_stay_finite_and_exact():
    hidden, head = torch.tensor([[300.0]], requires_grad=True), torch.tensor([[1.0], [0.0], [-1.0]])
    (log_prob,) = token_log_probs(hidden, head, torch.tensor([2]), vocab_size=3)
    log_prob.backward()
    assert log_prob.item() == pytest.approx(-600.0)
    assert hidden.grad.item() == pytest.approx(-2.0)
