"""Blocked attention is PyTorch's attention, forward and backward."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from groundup.models.blocked_attention import blocked_causal_attention


@pytest.mark.parametrize("length", [1, 5, 128, 129, 300])
def test_equal_to_sdpa_with_gradients(length):
    generator = torch.Generator().manual_seed(length)

    def random():
        return torch.randn(2, 3, length, 16, dtype=torch.float64, generator=generator)

    inputs = [random().requires_grad_() for _ in range(3)]
    gradient = random()
    expected = scaled_dot_product_attention(*inputs, is_causal=True)
    expected_gradients = torch.autograd.grad(expected, inputs, gradient)
    actual = blocked_causal_attention(*inputs)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    for a, b in zip(torch.autograd.grad(actual, inputs, gradient), expected_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
