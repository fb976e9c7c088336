"""A full GPU: the table of its memory, and the smallest change that fits. PyTorch's error is made up."""

import dataclasses

import pytest
import torch

from groundup.core.config import resolve
from groundup.parallel.layout import Layout
from groundup.train.config import TrainConfig
from groundup.train.stability.oom import explained

MESSAGE = (
    "CUDA out of memory. Tried to allocate {tried} MiB. GPU 0 has a total capacity of 80.00 MiB of which 1.00"
    " MiB is free. Process 7 has 79.00 MiB memory in use. Of the allocated memory {held} MiB is allocated by"
    " PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is"
    " large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)


class Optimizers:
    """With two moments."""

    def state(self):
        return {"weight/first": torch.zeros(1 << 20), "weight/second": torch.zeros(1 << 20)}


@dataclasses.dataclass
class State:
    model: torch.nn.Module
    optimizers: Optimizers
    average: None = None
    step: int = 11


def config(*overrides: str) -> TrainConfig:
    words = ("model.kind=gpt2", "run_dir=run", "data.path=data", "model.vocab_size=300", "num_steps=9")
    sizes = ("model.max_sequence_length=32", "model.num_layers=2", "model.hidden_size=32")
    rest = ("model.num_heads=2", "model.ffn_size=64", "data.sequence_length=32", "warmup.steps=0")
    return resolve(TrainConfig, overrides=(*words, *sizes, *rest, *overrides)).value


def words(config: TrainConfig, *, held: float = 70, tried: float = 16) -> str:
    """Of 4 MiB of weights, as much of gradients and 8 MiB of moments."""
    model = torch.nn.Linear(1 << 10, 1 << 10, bias=False)
    model.weight.grad = torch.zeros_like(model.weight)
    error = torch.OutOfMemoryError(MESSAGE.format(held=f"{held:.2f}", tried=f"{tried:.2f}"))
    return str(explained(error, State(model, Optimizers()), config))


def test_the_table_says_what_lies_in_memory():
    said = words(config(), held=7000, tried=2000)
    assert said.startswith("step 12: the GPU's memory is full: weights 0.00 GB, gradients 0.00 GB")
    assert "activations and the rest at least 9.42 GB, the GPU has 0.08 GB" in said
    assert "(CUDA out of memory. Tried to allocate 2000.00 MiB)" in said


@pytest.mark.parametrize(
    ("size", "held", "proposed"),
    [(8, 70, 4), (8, 160, 2), (8, 10_000, 1), (6, 70, 3), (9, 70, 3), (2, 70, 1)],
)
def test_the_largest_micro_batch_that_fits_is_proposed(size, held, proposed):
    batch = (f"micro_batch_size={size}", f"global_batch_size={2 * size}")
    said = words(config(*batch), held=held)
    assert f"Set micro_batch_size={proposed}: global_batch_size stays {2 * size}" in said
    assert 2 * size % proposed == 0


def test_then_recomputation_then_sharing_over_ranks():
    single = ("micro_batch_size=1",)
    assert "Set recompute.mode=selective" in words(config(*single))
    assert "Set recompute.mode=full" in words(config(*single, "recompute.mode=selective"))
    full = config(*single, "recompute.mode=full")
    assert "larger layout.tp" in words(dataclasses.replace(full, layout=Layout(dp=1)))
    assert "Set layout.zero=3" in words(dataclasses.replace(full, layout=Layout(dp=4)))


def test_a_message_of_another_form_still_gets_advice():
    model = torch.nn.Linear(2, 2)
    error = torch.OutOfMemoryError("HIP out of memory")
    said = str(explained(error, State(model, Optimizers()), config("micro_batch_size=4")))
    assert "(HIP out of memory). Set micro_batch_size=2" in said
