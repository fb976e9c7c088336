import math

import pytest
import torch

from groundup.parallel.grad_norm import total_norm


def test_the_norm_of_many_numbers_is_exact_where_pytorchs_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for shape in ((2000, 1024), (7,), (3, 5, 11))]
    expected = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
    assert total_norm(tensors) == pytest.approx(expected, rel=3e-7)
    assert float(torch.nn.utils.get_total_norm(tensors)) != pytest.approx(expected, rel=3e-6)


def test_what_is_not_finite_shows() -> None:
    assert math.isnan(total_norm([torch.ones(3), torch.tensor([math.nan])]))
    assert math.isinf(total_norm([torch.ones(3), torch.tensor([math.inf])]))
    assert total_norm([torch.zeros(4), torch.zeros(0)]) == 0
