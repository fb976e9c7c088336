"""Linear layers in fp8 beside those in fp32: as near as two roundings leave them, and half of the memory."""

import copy

import pytest
import torch
from torch import nn

from groundup.models import build_model
from groundup.models.init import initialise
from groundup.parallel.activation_checkpointing import Recompute, apply_activation_checkpointing
from groundup.parallel.float8_linear import Float8Linear, require_float8, use_float8
from tests.instances import MODELS

E4M3, E5M2 = 2.0**-4, 2.0**-3
"""Largest relative errors of rounding, with 3 and 2 bits behind the point."""


def pair(*, bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(64, 128, bias=bias)
    rounded = copy.deepcopy(plain)
    rounded.__class__ = Float8Linear
    return plain, rounded


def outputs_and_gradients(layer: nn.Linear, x: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(dy.to(y.dtype))
    return [y.detach().float(), *(one.grad for one in (x, *layer.parameters()))]


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [1.0, 1e5, 1e-5])
def test_products_are_those_of_fp32_but_for_rounding_whatever_their_size(scale, bias):
    plain, rounded = pair(bias=bias)
    x, dy = scale * torch.randn(2, 24, 64), torch.randn(2, 24, 128) / scale
    if bias:
        plain.bias.data.mul_(scale)
        rounded.bias.data.mul_(scale)
    exact, found = (outputs_and_gradients(layer, x, dy) for layer in (plain, rounded))
    errors = [relative_error(*both) for both in zip(found, exact, strict=True)]
    assert 1e-3 < errors[0] < E4M3
    assert all(1e-3 < error < E5M2 for error in errors[1:3])
    assert all(error < 0.005 for error in errors[3:])  # a bias is summed in bf16
    assert found[2].dtype == torch.float32


def test_what_the_backward_pass_reads_has_8_bits():
    _, layer = pair()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        layer(torch.randn(32, 64, requires_grad=True))
    assert sum(one.nbytes for one in saved if one.numel() > 1) == 32 * 64 + 128 * 64


def test_tokens_that_are_no_multiple_of_16_are_not_rounded():
    plain, rounded = pair()
    x, dy = torch.randn(3, 5, 64), torch.randn(3, 5, 128)
    for found, exact in zip(
        outputs_and_gradients(rounded, x, dy), outputs_and_gradients(plain, x, dy), strict=True
    ):
        assert torch.equal(found, exact)


def test_zeros_give_zeros_and_what_is_not_finite_is_seen():
    _, layer = pair(bias=False)
    assert not layer(torch.zeros(16, 64)).any()
    for wrong in (torch.nan, torch.inf):
        x = torch.ones(16, 64)
        x[3, 2] = wrong
        assert not layer(x).isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_the_layers_of_a_model_multiply_in_fp8_and_its_head_does_not(name):
    config = MODELS[name]
    model = build_model(config)
    initialise(model, config, seed=0)
    before = {name: (id(one), one.shape) for name, one in model.named_parameters()}
    use_float8(model)
    assert {name: (id(one), one.shape) for name, one in model.named_parameters()} == before
    in_fp8 = {name for name, one in model.named_modules() if isinstance(one, Float8Linear)}
    assert in_fp8 == {
        name
        for name, one in model.named_modules()
        if isinstance(one, nn.Linear) and name.startswith("layers.")
    }
    assert "layers.0.attention.wq" in in_fp8
    assert "head" not in in_fp8


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_recomputed_layers_are_the_same_to_the_bit(mode):
    config = MODELS["gpt2"]
    found = []
    for recompute in (Recompute(), Recompute(mode=mode)):
        model = build_model(config).train()
        initialise(model, config, seed=0)
        use_float8(model)
        apply_activation_checkpointing(model, recompute)
        tokens = torch.randint(config.vocab_size, (2, 16), generator=torch.Generator().manual_seed(1))
        with torch.autocast("cpu", torch.bfloat16):
            model(tokens).square().mean().backward()
        found.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(one, found[1][name]) for name, one in found[0].items())


@pytest.mark.parametrize(
    ("change", "tp", "tokens", "why"),
    [
        ({}, 2, 64, "needs layout.tp 1"),
        ({}, 1, 40, "multiples of 16; micro_batch_size x data.sequence_length / layout.cp is 40"),
        ({"ffn_size": 72}, 1, 64, "multiples of 16; model.ffn_size is 72"),
        ({"hidden_size": 40, "num_heads": 4}, 1, 64, "multiples of 16; model.hidden_size is 40"),
    ],
)
def test_what_cannot_run_in_fp8_is_refused(change, tp, tokens, why):
    from groundup.models.gpt2 import GPT2Config

    sizes = {"vocab_size": 300, "max_sequence_length": 64, "num_layers": 2, "hidden_size": 32, "num_heads": 2}
    fitting = GPT2Config(**sizes, ffn_size=64)
    require_float8(fitting, tp=1, tokens=64)
    with pytest.raises(ValueError, match=why):
        require_float8(GPT2Config(**{**sizes, "ffn_size": 64, **change}), tp=tp, tokens=tokens)
