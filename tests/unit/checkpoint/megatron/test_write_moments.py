"""Moments written for Megatron-LM: they come back to the bit, and a plain Adam goes on from them."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from groundup.checkpoint.lazy import LazyModel, as_lazy, in_dtype, in_memory
from groundup.checkpoint.megatron import write
from groundup.checkpoint.megatron.optimizer import ENTRIES
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.megatron.write import write_megatron
from groundup.checkpoint.native.model import open_native, write_native
from groundup.cli.app import build_app
from groundup.verify.convert import differing, verify_convert
from tests.instances import MODELS
from tests.megatron_files import edit, flat_tensors, rank_files
from tests.tiny import tiny_model

ADAMW = {"kind": "adamw", "lr": 0.01, "beta1": 0.8, "beta2": 0.9, "eps": 1e-7, "weight_decay": 0.3}
BIASED = [name for name in MODELS if not name.endswith("biasless")]


def trained(name: str, *, dtype: torch.dtype = torch.float32) -> LazyModel:
    """A model with arbitrary moments, no two alike."""
    stored = as_lazy(tiny_model(name))
    generator = torch.Generator().manual_seed(1)
    moments = {}
    for weight, tensor in stored.weights.items():
        mean, square = (torch.randn(tensor.shape, generator=generator) for _ in range(2))
        moments[f"{weight}/exp_avg"] = in_memory(mean.to(dtype))
        moments[f"{weight}/exp_avg_sq"] = in_memory(square.square().to(dtype))
        moments[f"{weight}/step"] = in_memory(torch.tensor(7.0))
    return dataclasses.replace(stored, moments=moments, step=7, samples=84, optimizer=ADAMW)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("name", BIASED)
def test_they_come_back_to_the_bit(name: str, tp: int, pp: int, tmp_path: Path) -> None:
    ours = trained(name)
    write_native(ours, tmp_path / "native")
    written = write_megatron(open_native(tmp_path / "native"), tmp_path / "megatron", tp=tp, pp=pp)
    assert written.name == "iter_0000007"
    write_native(open_megatron(tmp_path / "megatron", moments=True), tmp_path / "again")
    again = open_native(tmp_path / "again")
    assert not differing(ours.weights, again.weights)
    assert not differing(ours.moments, again.moments)
    assert (again.step, again.samples) == (7, 84)


def parameters_as_megatrons(tensors: list[tuple[str, Tensor]]) -> list[dict[str, Any]]:
    """The groups of an Adam over a model of Megatron-LM's, in the order of its modules."""
    decayed = [tensor for name, tensor in tensors if tensor.ndim > 1 and not name.endswith(".bias")]
    others = [tensor for name, tensor in tensors if tensor.ndim <= 1 or name.endswith(".bias")]
    return [{"params": decayed, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]


def update(groups: list[dict[str, Any]], state: dict[str, Any]) -> None:
    """One step of PyTorch's AdamW, with gradients that tell their parameter; settings are the state's."""
    adam = torch.optim.AdamW(groups, lr=1e-9)
    adam.load_state_dict(state)
    for group in adam.param_groups:
        for parameter in group["params"]:
            parameter.grad = 0.1 * parameter
    adam.step()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_adam_goes_on_from_them(name: str, tmp_path: Path) -> None:
    ours = trained(name)
    named = {weight: tensor.read().clone() for weight, tensor in ours.weights.items()}
    groups = parameters_as_megatrons(list(named.items()))
    numbers = {id(parameter): weight for weight, parameter in named.items()}
    order = [numbers[id(parameter)] for group in groups for parameter in group["params"]]
    state = {
        number: {kind: ours.moments[f"{weight}/{kind}"].read().clone() for kind in ("step", *ENTRIES)}
        for number, weight in enumerate(order)
    }
    param_groups = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9), eps=1e-7).state_dict()["param_groups"]
    update(groups, {"state": state, "param_groups": param_groups})

    write_megatron(ours, tmp_path / "out")

    def step(content: dict[str, Any]) -> None:
        update(parameters_as_megatrons(list(flat_tensors(content["model"]))), content["optimizer"])
        del content["optimizer"], content["opt_param_scheduler"]

    [path] = rank_files(tmp_path / "out")
    edit(path, step)
    found = open_megatron(tmp_path / "out")
    for weight, tensor in named.items():
        assert not torch.equal(tensor, ours.weights[weight].read())
        assert torch.equal(found.weights[weight].read(), tensor), weight


def test_what_megatron_asks_for_is_there(tmp_path: Path) -> None:
    written = write_megatron(in_dtype(trained("gpt2"), torch.bfloat16), tmp_path / "out", tp=2, pp=2)
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(written / "mp_rank_01_001" / "model_optim_rng.pt", weights_only=True)
    args, optimizer = vars(content["args"]), content["optimizer"]
    assert args["bf16"]
    assert (args["optimizer"], args["adam_beta2"], args["consumed_train_samples"]) == ("adam", 0.9, 84)
    assert args["use_distributed_optimizer"] is False
    assert content["opt_param_scheduler"]["num_steps"] == 84
    first, second = optimizer["optimizer"]["param_groups"]
    assert (first["betas"], first["eps"], first["step"], first["wd_mult"]) == ((0.8, 0.9), 1e-7, 7, 1.0)
    assert second["weight_decay"] == second["wd_mult"] == 0.0
    # the names and order of a last stage's modules: a layer, the last norm, the copy of the embedding
    names = [name for name, _ in flat_tensors(content["model"])]
    layer = "language_model.encoder.layers.0"
    assert names == [
        *(f"{layer}.{module}.{kind}"
          for module in ("input_layernorm", "self_attention.query_key_value", "self_attention.dense",
                         "post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
          for kind in ("weight", "bias")),
        "language_model.encoder.final_layernorm.weight", "language_model.encoder.final_layernorm.bias",
        "word_embeddings_for_head.weight",
    ]  # fmt: skip
    assert [tensor.dtype for tensor in optimizer["fp32_from_fp16_params"][0]] == [torch.float32] * 5
    assert [len(group) for group in optimizer["fp32_from_fp16_params"]] == [5, 10]
    assert len(optimizer["optimizer"]["state"]) == 15


def test_16_bit_weights_bring_their_fp32_originals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = trained("llama-grouped-tied")
    write_native(ours, tmp_path / "native")

    def groundup(*arguments: object) -> str:
        build_app()([str(argument) for argument in arguments], result_action="return_value")
        return capsys.readouterr().out

    out = groundup("convert", tmp_path / "native", tmp_path / "half", "--to", "megatron", "--tp", 2,
                   "--dtype", "bfloat16")  # fmt: skip
    assert "bfloat16, with the optimizer's moments" in out
    assert "largest difference of logits 0.0e+00" in out
    assert "--no-load-rng --override-opt_param-scheduler" in out
    groundup("convert", tmp_path / "half", tmp_path / "again", "--to", "native")
    again = open_native(tmp_path / "again")
    assert not differing(ours.weights, again.weights)
    assert not differing(ours.moments, again.moments)
    out = groundup("convert", tmp_path / "native", tmp_path / "weights", "--to", "megatron", "--no-moments")
    assert "moments" not in out
    assert not open_megatron(tmp_path / "weights", moments=True).moments


def test_moments_of_16_bits_are_widened(tmp_path: Path) -> None:
    ours = trained("gpt2", dtype=torch.bfloat16)
    write_megatron(ours, tmp_path / "out")
    found = open_megatron(tmp_path / "out", moments=True).moments
    for name, tensor in ours.moments.items():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name].read(), tensor.read().float())


@pytest.mark.parametrize(
    ("change", "naming", "reason"),
    [
        (
            "muon",
            "legacy",
            "the optimizer was not AdamW: it keeps exp_avg, exp_avg_sq, momentum_buffer, step",
        ),
        ("sgd", "legacy", "the optimizer was not AdamW: it keeps momentum_buffer"),
        ("some", "legacy", "some weights have no moments, such as norm.weight"),
        ("step", "legacy", "the number of training steps is not known"),
        ("steps", "legacy", "weights were updated in different numbers of steps"),
        ("none", "core", "Megatron-LM's optimizers number parameters, in an order that is not known"),
    ],
)
def test_what_cannot_be_written_is_left_out_with_its_reason(
    change: str, naming: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = trained("llama")
    moments = dict(ours.moments)
    if change == "muon":
        moments["layers.0.attention.wq.weight/momentum_buffer"] = moments[
            "layers.0.attention.wq.weight/exp_avg"
        ]
    elif change == "sgd":
        moments = {f"{name}/momentum_buffer": tensor for name, tensor in ours.weights.items()}
    elif change == "some":
        del moments["norm.weight/exp_avg"]
    elif change == "steps":
        moments["norm.weight/step"] = in_memory(torch.tensor(8.0))
    step = 0 if change == "step" else 7
    with caplog.at_level("WARNING", logger="groundup"):
        write_megatron(dataclasses.replace(ours, moments=moments, step=step), tmp_path / "out", names=naming)
    assert f"the optimizer's state is left out: {reason}" in caplog.text.replace("\n", " ")
    found = open_megatron(tmp_path / "out", moments=True)
    assert not found.moments
    assert not differing(ours.weights, found.weights)


def test_they_are_part_of_what_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = trained("gpt2")
    assert all(one.is_right for one in verify_convert(ours, tmp_path, on_write=lambda _: None))
    real = write.optimizer_entry

    def confuse(**settings: Any) -> dict[str, Any]:
        kinds = settings["moments"]
        return real(
            **{**settings, "moments": {"exp_avg": kinds["exp_avg_sq"], "exp_avg_sq": kinds["exp_avg"]}}
        )

    monkeypatch.setattr(write, "optimizer_entry", confuse)
    found = {one.path: one for one in verify_convert(ours, tmp_path, on_write=lambda _: None)}
    wrong = [path for path, one in found.items() if not one.is_right]
    assert wrong == ["megatron legacy 1x1", "megatron legacy 2x2"]
