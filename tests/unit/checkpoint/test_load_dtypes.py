"""Models that are loaded in a dtype other than fp32."""

import dataclasses
from typing import Any

import pytest
import torch

from groundup.checkpoint.lazy import as_lazy, load
from groundup.core.errors import CheckpointError
from groundup.models import WeightDtypes, lm_head
from tests.instances import MODELS
from tests.tiny import tiny_model

TOKENS = torch.arange(60).view(2, 30)


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_rounded_as_they_are_read(name: str) -> None:
    ours = tiny_model(name)
    found: Any = load(as_lazy(ours), device="cpu", dtypes=WeightDtypes(default=torch.bfloat16)).model
    expected = dict(ours.model.named_parameters())
    for parameter, weight in found.named_parameters():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, expected[parameter].bfloat16())
    assert (found.head.weight is found.embed.tokens.weight) == ours.config.tied_embedding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_linear_layers_of_autocast_s_dtype_change_no_score(name: str, dtype: torch.dtype) -> None:
    ours = tiny_model(name)
    rounded = load(as_lazy(ours), device="cpu", dtypes=WeightDtypes(linear=dtype))
    logits = []
    for model in (ours.model, rounded.model):
        with torch.inference_mode(), torch.autocast("cpu", dtype):
            logits.append(lm_head(model, model(TOKENS), ours.config.vocab_size))
    assert torch.equal(*logits)
    dtypes = {parameter: weight.dtype for parameter, weight in rounded.model.named_parameters()}
    assert dtypes["layers.0.mlp.w1.weight"] == dtype
    assert dtypes["embed.tokens.weight"] == dtypes["norm.weight"] == torch.float32
    assert dtypes.get("head.weight", dtype) == dtype


def test_a_weight_that_does_not_fit_is_named() -> None:
    ours = tiny_model("llama")
    with torch.no_grad():
        ours.model.layers["1"].mlp.w2.weight[3, 4] = 1e5  # type: ignore[index, union-attr]
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.w2\.weight does not fit float16"):
        load(as_lazy(ours), device="cpu", dtypes=WeightDtypes(default=torch.float16))
    load(as_lazy(dataclasses.replace(ours)), device="cpu", dtypes=WeightDtypes(default=torch.bfloat16))
