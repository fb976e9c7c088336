from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint.megatron.parameters import Naming
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.native.model import open_native, write_native
from groundup.core.errors import CheckpointError
from groundup.train.optim import AdamW, build_optimizers
from tests.megatron_files import edit, flat_tensors, rank_files, with_optimizer, write_checkpoint
from tests.tiny import tiny_model


def add_optimizer(folder: Path, *, half: bool, step: int = 7) -> None:
    for path in rank_files(folder):
        edit(path, lambda content: with_optimizer(content, half=half, step=step))


def require_moments(folder: Path, name: str) -> None:
    """Each moment must tell its parameter: 2 and 3 times the weight."""
    weights = {n: p.detach()[:300] if "tokens" in n or n.startswith("head") else p.detach()
               for n, p in tiny_model(name).model.named_parameters()}  # fmt: skip
    found = open_megatron(folder, moments=True)
    assert {tensor.dtype for tensor in found.weights.values()} == {torch.float32}
    for weight_name, weight in weights.items():
        assert torch.equal(found.weights[weight_name].read(), weight), weight_name
        assert torch.equal(found.moments[f"{weight_name}/exp_avg"].read(), 2 * weight), weight_name
        assert torch.equal(found.moments[f"{weight_name}/exp_avg_sq"].read(), 3 * weight), weight_name
        assert found.moments[f"{weight_name}/step"].read() == 7
    assert len(found.moments) == 3 * len(weights)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("name", "naming", "tp", "pp"),
    [("gpt2", "legacy", 1, 1), ("gpt2", "core", 2, 2), ("llama-grouped-tied", "legacy", 2, 2),
     ("llama", "core-fused", 2, 1)],
)  # fmt: skip
def test_moments_and_fp32_weights_are_kept(
    name: str, naming: Naming, tp: int, pp: int, half: bool, tmp_path: Path
) -> None:
    write_checkpoint(tiny_model(name), tmp_path / "out", tp=tp, pp=pp, names=naming)
    add_optimizer(tmp_path / "out", half=half)
    require_moments(tmp_path / "out", name)
    assert not open_megatron(tmp_path / "out").moments


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2)])
def test_the_distributed_optimizers_buffers_are_read(tp: int, pp: int, tmp_path: Path) -> None:
    write_checkpoint(tiny_model("gpt2"), tmp_path / "out", tp=tp, pp=pp)
    for path in rank_files(tmp_path / "out"):

        def change(content: dict[str, Any], path: Path = path) -> None:
            tensors = [tensor.flatten() for _, tensor in flat_tensors(content["model"])]
            flat = torch.cat([*tensors[::-1], torch.full((5,), float("nan"))])  # padded for the ranks
            buffers = {"param": flat, "exp_avg": 2 * flat, "exp_avg_sq": 3 * flat}
            torch.save({0: {torch.float32: buffers}}, path.with_name("distrib_optim.pt"))
            with_optimizer(content, half=True, step=7)
            del content["optimizer"]["fp32_from_fp16_params"], content["optimizer"]["optimizer"]["state"]

        edit(path, change)
    require_moments(tmp_path / "out", "gpt2")


def test_a_native_checkpoint_keeps_moments_as_our_optimizer_does(tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    write_checkpoint(ours, tmp_path / "out", tp=2)
    add_optimizer(tmp_path / "out", half=True)
    write_native(open_megatron(tmp_path / "out", moments=True), tmp_path / "native")
    moments = open_native(tmp_path / "native").moments
    for parameter in ours.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizers = build_optimizers(ours.model, AdamW())
    optimizers.step()
    state = optimizers.state()
    assert state.keys() == moments.keys()
    for key, value in state.items():
        tokens = "embed.tokens" in key and value.ndim
        assert moments[key].shape == ((300, 32) if tokens else value.shape), key
        assert moments[key].read().dtype == value.dtype


def test_an_optimizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tiny_model("gpt2"), tmp_path / "out")
    add_optimizer(tmp_path / "out", half=False)
    [path] = rank_files(tmp_path / "out")

    def remove_one(content: dict[str, Any]) -> None:
        del content["optimizer"]["state"][3]

    def swap_two(content: dict[str, Any]) -> None:
        state = content["optimizer"]["state"]
        state[3] = state[2]

    def other_kind(content: dict[str, Any]) -> None:
        content["optimizer"] = [content["optimizer"]]

    for change, message in (
        (swap_two, "the optimizer's exp_avg do not fit the model"),
        (remove_one, "the optimizer's exp_avg do not fit the model"),
        (other_kind, "its optimizer is of a kind that is not known"),
    ):
        edit(path, change)
        with pytest.raises(CheckpointError, match=message) as caught:
            open_megatron(tmp_path / "out", moments=True)
        assert "--no-moments" in str(caught.value)
        assert open_megatron(tmp_path / "out").weights  # they are not needed for the weights
