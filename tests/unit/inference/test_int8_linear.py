"""Weights of 8 bits."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from groundup.checkpoint.huggingface.weights import read_huggingface
from groundup.checkpoint.lazy import LoadedModel
from groundup.core.errors import ConfigError, MachineError
from groundup.inference.engine import Engine
from groundup.inference.int8_linear import Int8Linear, has_int8, require_int8, rounded_rows
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request
from tests.tiny import tiny_model
from tests.unit.inference.test_beam_search import softened
from tests.unit.inference.test_continuous_batching import requests

CPU = torch.device("cpu")
needs_kernels = pytest.mark.skipif(not has_int8(CPU), reason="this processor has no VNNI")


@needs_kernels
@pytest.mark.parametrize("shape", [(768, 768), (100, 50), (50, 100), (7, 33), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_weights_are_rounded(shape: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(shape, generator=generator), torch.randn(2, 5, shape[1], generator=generator)
    weight[0] = 0
    bias = torch.randn(shape[0], generator=generator)
    x *= torch.logspace(-6, 6, 5).unsqueeze(1)  # a token has its own scale
    x[0, 0] = 0
    x = x.to(dtype)
    values, scale = rounded_rows(weight)
    assert (values * scale.unsqueeze(1) - weight).abs().max() <= scale.max() / 2 * 1.001
    product = linear(x.double(), values.double() * scale.double().unsqueeze(1))
    # Each activation is off by half a step at most, and a step is 1/32512 of the token's largest.
    step = x.double().abs().amax(-1, keepdim=True) / (127 * 256)
    allowed = step / 2 * (values.double().abs().sum(1) * scale) * 1.01
    allowed += (product + bias).abs() * (2**-7 if dtype == torch.bfloat16 else 2**-19) + 1e-6
    layer = Int8Linear(weight, bias)
    found = layer(x)
    assert found.dtype == dtype
    assert ((found.double() - product - bias).abs() <= allowed).all()
    assert torch.equal(layer(x[1:, 3:4]), found[1:, 3:4]), "a token depends on no other"


@needs_kernels
def test_a_token_that_is_not_finite_harms_no_other() -> None:
    layer = Int8Linear(torch.randn(64, 32), None)
    x = torch.randn(3, 32)
    expected = layer(x)
    x[0, 5], x[1, 7] = torch.nan, torch.inf
    found = layer(x)
    assert not found[:2].sum(-1).isfinite().any()
    assert torch.equal(found[2], expected[2])


def with_rounded_weights(loaded: LoadedModel) -> LoadedModel:
    """The model in fp32 with the weights that int8 has, and an embedding rounded to bf16."""
    copy: Any = tiny_like(loaded, tied_embedding=False)
    for name, parameter in loaded.model.named_parameters():
        copy.model.get_parameter(name).data.copy_(parameter.bfloat16())
    vocab = loaded.config.vocab_size
    copy.model.head.weight.data[:vocab] = loaded.model.head.weight.detach().bfloat16()[:vocab]  # type: ignore[index, union-attr]
    for module in copy.model.modules():
        if isinstance(module, torch.nn.Linear):
            values, scale = rounded_rows(module.weight.detach())
            module.weight.data = values * scale.unsqueeze(1)
    return copy  # type: ignore[no-any-return]


def tiny_like(loaded: LoadedModel, **changes: Any) -> LoadedModel:
    config = dataclasses.replace(loaded.config, **changes)
    model = type(loaded.model)(config)  # type: ignore[call-arg, arg-type]
    return dataclasses.replace(loaded, config=config, model=model.eval())


@needs_kernels
@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-grouped-tied"])
def test_the_engine_computes_what_rounded_weights_give(name: str) -> None:
    loaded = softened(tiny_model(name))
    prompt = [5, 9, 200, 7, 31] * 6
    wanted = Request(prompt=prompt, sampling=Sampling(temperature=0), max_new_tokens=1, num_logprobs=300)
    int8 = Engine(loaded, dtype=torch.int8, max_step_tokens=8)
    assert next(loaded.model.parameters()).dtype == torch.float32, "others use the model"
    [found] = int8.complete([wanted])
    [expected] = Engine(with_rounded_weights(loaded)).complete([wanted])
    ours, theirs = dict(found.logprobs[0].top), dict(expected.logprobs[0].top)
    assert ours.keys() == theirs.keys() == set(range(300)), "and no id of the padding"
    error = max(abs(ours[number] - theirs[number]) for number in theirs)
    assert error < 0.03 * (max(theirs.values()) - min(theirs.values()))


@needs_kernels
def test_a_real_model_tells_almost_the_same_story(shared_data: Path) -> None:
    loaded = read_huggingface(shared_data / "models" / "stories260K")
    text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    prompt = [1, *loaded.tokenizer.encode(text)]
    wanted = Request(prompt=prompt, sampling=Sampling(temperature=0), max_new_tokens=0, num_prompt_logprobs=0)
    means = {}
    for dtype in (torch.float32, torch.int8):
        [found] = Engine(loaded, dtype=dtype).complete([wanted])
        scored = [logprob.chosen for logprob in found.prompt_logprobs]
        means[dtype] = sum(scored) / len(scored)
    assert means[torch.int8] == pytest.approx(means[torch.float32], abs=0.02)


@needs_kernels
def test_other_texts_in_the_batch_change_nothing() -> None:
    loaded = softened(tiny_model("gpt2"))
    wanted = requests(6)
    together = list(Engine(loaded, dtype=torch.int8, max_batch_size=4).complete(wanted))
    alone = [next(iter(Engine(loaded, dtype=torch.int8).complete([one]))) for one in wanted]
    assert [one.ids for one in together] == [one.ids for one in alone]


def test_where_there_are_no_kernels_it_is_refused() -> None:
    with pytest.raises(MachineError, match="kernels for weights of 8 bits"):
        require_int8(torch.device("cuda"), 1)
    with pytest.raises(ConfigError, match="one process"):
        require_int8(CPU, 2)
