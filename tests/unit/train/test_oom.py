"""A full GPU: the table of its memory, and the smallest change that fits. PyTorch's error is made up."""

import dataclasses

import pytest
import torch

from groundup.core.config import resolve
from groundup.parallel.layout import Layout
from groundup.train.config import TrainConfig
from groundup.train.stability.oom import GpuMemory, explained, gpu_memory

MESSAGE = "CUDA out of memory. Tried to allocate 16.00 MiB. GPU 0 has a total capacity of 80.00 MiB of which"
MIB = 1 << 20


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


def words(config: TrainConfig, *, peak: int = 86) -> str:
    """Of 4 MiB of weights, as much of gradients and 8 MiB of moments."""
    model = torch.nn.Linear(1 << 10, 1 << 10, bias=False)
    model.weight.grad = torch.zeros_like(model.weight)
    memory = GpuMemory(capacity=80 * MIB, peak=peak * MIB)
    return str(explained(torch.OutOfMemoryError(MESSAGE), State(model, Optimizers()), config, memory))


def test_the_table_says_what_lies_in_memory():
    said = words(config(), peak=9000)
    assert said.startswith("step 12: the GPU's memory is full: weights 0.00 GB, gradients 0.00 GB")
    assert "activations and the rest at least 9.42 GB, the GPU has 0.08 GB" in said
    assert "(CUDA out of memory. Tried to allocate 16.00 MiB)" in said


@pytest.mark.parametrize(
    ("size", "peak", "proposed"),
    [(8, 86, 4), (8, 176, 2), (8, 10_016, 1), (6, 86, 3), (9, 86, 3), (2, 86, 1)],
)
def test_the_largest_micro_batch_that_fits_is_proposed(size, peak, proposed):
    batch = (f"micro_batch_size={size}", f"global_batch_size={2 * size}")
    said = words(config(*batch), peak=peak)
    assert f"Set micro_batch_size={proposed}: global_batch_size stays {2 * size}" in said
    assert 2 * size % proposed == 0


def test_then_recomputation_then_sharing_over_ranks():
    single = ("micro_batch_size=1",)
    assert "Set recompute.mode=selective" in words(config(*single))
    assert "Set recompute.mode=full" in words(config(*single, "recompute.mode=selective"))
    full = config(*single, "recompute.mode=full")
    assert "larger layout.tp" in words(dataclasses.replace(full, layout=Layout(dp=1)))
    assert "Set layout.zero=3" in words(dataclasses.replace(full, layout=Layout(dp=4)))


def test_without_numbers_there_is_advice_too():
    model = torch.nn.Linear(2, 2)
    error = torch.OutOfMemoryError("HIP out of memory")
    said = str(explained(error, State(model, Optimizers()), config("micro_batch_size=4"), None))
    assert "(HIP out of memory). Set micro_batch_size=2" in said


@pytest.mark.parametrize(
    ("optimizer", "bytes_a_matrix"),
    [
        ("optimizer.kind=adamw", 8),
        ("optimizer.state_dtype=bf16", 4),
        ("optimizer.kind=muon", 4),
        ("optimizer.kind=sgd", 0),
    ],
)
def test_state_that_is_still_to_come_is_counted_as_the_optimizer_declares_it(optimizer, bytes_a_matrix):
    """Before the first update: micro-batches of 8 fit in just what is left, and not in a byte less."""
    matrix = torch.nn.Parameter(torch.zeros(1 << 10, 1 << 10))
    model = torch.nn.ModuleDict({"layers": torch.nn.ParameterDict({"0": matrix})})
    matrix.grad = torch.zeros_like(matrix)

    class Unused:
        def state(self):
            return {}

    peak = (8 + 16) * MIB  # 16 of activations, so that half the micro-batch takes 8
    settings = config("micro_batch_size=8", optimizer)

    def proposed(capacity: float) -> str:
        memory = GpuMemory(capacity=int(capacity / 0.92) + 1, peak=peak)
        return str(explained(torch.OutOfMemoryError("full"), State(model, Unused()), settings, memory))

    fixed = (8 + bytes_a_matrix) * MIB
    assert "Set micro_batch_size=4" in proposed(fixed + 8 * MIB)
    assert "Set micro_batch_size=2" in proposed(fixed + 8 * MIB - 100)


def test_pytorch_is_asked_for_a_gpu_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 80))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"allocated_bytes.all.peak": 70})
    assert gpu_memory(torch.device("cuda", 0)) == GpuMemory(capacity=80, peak=70)
    assert gpu_memory(torch.device("cpu")) is None
