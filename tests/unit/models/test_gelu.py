"""Our GELU in bf16 is the tanh approximation to bf16's rounding, forward and backward."""

import pytest
import torch
from torch.nn.functional import gelu

from groundup.models import gelu as module
from groundup.models.gelu import gelu_tanh


@pytest.mark.parametrize("block", [1 << 17, 1000])  # 1000: several blocks, the last one short
def test_equal_to_the_definition_in_fp64(block, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    x = torch.cat((torch.randn(4000, generator=generator), torch.linspace(-40, 40, 1002)))
    x = x.view(2, 2501).bfloat16().requires_grad_()
    dy = torch.randn(x.shape, generator=generator).bfloat16()
    exact = x.detach().double().requires_grad_()
    expected = gelu(exact, approximate="tanh")
    (expected_gradient,) = torch.autograd.grad(expected, exact, dy.double())
    actual = gelu_tanh(x)
    (gradient,) = torch.autograd.grad(actual, x, dy)
    assert actual.dtype == gradient.dtype == torch.bfloat16
    assert actual.grad_fn.name() == "_GeluTanhBackward", "PyTorch's own was used"
    torch.testing.assert_close(actual.double(), expected, rtol=2**-8, atol=1e-6)
    # The slope is rounded, and then the product.
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=2**-7, atol=1e-5)


def test_an_input_that_is_not_contiguous():
    x = torch.randn(30, 40, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    assert torch.equal(gelu_tanh(x.mT), gelu_tanh(x).mT)


def test_other_dtypes_and_evaluation_take_pytorchs():
    x = torch.randn(10, requires_grad=True)
    assert torch.equal(gelu_tanh(x), gelu(x, approximate="tanh"))
    with torch.no_grad():
        assert torch.equal(gelu_tanh(x.bfloat16()), gelu(x.bfloat16(), approximate="tanh"))
