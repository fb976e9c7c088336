"""Blocked attention is PyTorch's attention, forward and backward, also of the last tokens alone."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from groundup.models.blocked_attention import blocked_causal_attention


@pytest.mark.parametrize("length", [1, 5, 128, 129, 300])
@pytest.mark.parametrize("past", [0, 1, 127, 130])
def test_equal_to_sdpa_with_gradients(length, past):
    generator = torch.Generator().manual_seed(length)

    def random(num_tokens):
        return torch.randn(2, 3, num_tokens, 16, dtype=torch.float64, generator=generator)

    inputs = [random(num_tokens).requires_grad_() for num_tokens in (length, past + length, past + length)]
    gradient = random(length)
    visible = torch.ones(length, past + length, dtype=torch.bool).tril(past)
    expected = scaled_dot_product_attention(*inputs, attn_mask=visible)
    expected_gradients = torch.autograd.grad(expected, inputs, gradient)
    actual = blocked_causal_attention(*inputs)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    for a, b in zip(torch.autograd.grad(actual, inputs, gradient), expected_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
