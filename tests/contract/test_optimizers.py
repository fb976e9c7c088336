"""What every optimizer must do: keep the state that it says it keeps, and no other."""

import dataclasses

import pytest
import torch

from groundup.checkpoint.lazy import as_lazy, in_memory
from groundup.checkpoint.megatron.optimizer import find_unwritable_state
from groundup.train.optim import Optimizer, build_optimizers
from tests.instances import MODELS, OPTIMIZERS
from tests.tiny import tiny_model

NAMES = ["gpt2", "llama", "stablelm"]


def stepped(optimizer: Optimizer, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The optimizer's state after two updates with arbitrary gradients."""
    optimizers = build_optimizers(model, optimizer)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizers.step()
    return optimizers.state()


def declared(optimizer: Optimizer, model: torch.nn.Module) -> dict[str, torch.dtype]:
    return {
        f"{name}/{entry}": dtype
        for name, parameter in model.named_parameters()
        for entry, dtype in optimizer.state_of(name, parameter).items()
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_the_state_is_the_declared_one(optimizer, name):
    model = tiny_model(name).model
    shapes = {key: parameter.shape for key, parameter in model.named_parameters()}
    tensors = {key: tensor for key, tensor in stepped(optimizer, model).items() if tensor.ndim}
    assert {key: tensor.dtype for key, tensor in tensors.items()} == declared(optimizer, model)
    assert all(tensor.shape == shapes[key.rpartition("/")[0]] for key, tensor in tensors.items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_room_is_made_for_a_state_of_other_dtypes(optimizer):
    model = tiny_model("llama").model
    state = stepped(optimizer, model)
    entries: dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]] = {
        name: {} for name, _ in model.named_parameters()
    }
    for key, tensor in state.items():
        name, _, entry = key.rpartition("/")
        entries[name][entry] = (torch.float64, tuple(tensor.shape)) if tensor.ndim else (tensor.dtype, ())
    room = build_optimizers(model, optimizer).make_room(entries)
    assert {key: (one.dtype, one.shape) for key, one in room.items()} == {
        key: (one.dtype, one.shape) for key, one in state.items()
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_megatron_takes_the_state_of_an_adam_alone(optimizer):
    """Whatever else an optimizer says that it keeps is named where its export is refused."""
    loaded = tiny_model("llama")
    moments = {key: in_memory(tensor) for key, tensor in stepped(optimizer, loaded.model).items()}
    kept = {key.rpartition("/")[2] for key in declared(optimizer, loaded.model)}
    reason = find_unwritable_state(dataclasses.replace(as_lazy(loaded), moments=moments, step=2), "legacy")
    if kept == {"exp_avg", "exp_avg_sq"}:
        assert not reason
    elif kept:
        assert all(entry in reason for entry in kept)
    else:
        assert reason.startswith("some weights have no moments")


def test_all_kinds_of_models_are_covered():
    assert {type(MODELS[name]) for name in NAMES} == {type(config) for config in MODELS.values()}
