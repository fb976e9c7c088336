"""Gradients that data-parallel ranks add up, in the dtype of the layout."""

import contextlib
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from groundup.launch.env import rank_from_env
from groundup.models import build_model
from groundup.models.init import initialise
from groundup.parallel.activation_checkpointing import Recompute
from groundup.parallel.apply import parallelize
from groundup.parallel.fsdp import set_gradient_sync
from groundup.parallel.layout import Layout
from groundup.parallel.mesh import init_distributed
from tests.instances import MODELS
from tests.parallel.ranks import train_on_ranks
from tests.runs import make_config, make_data

ROWS = 2


def backward(model, rows):
    """Gradients of some rows of one batch, of whichever size."""
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(300, (ROWS, 16), generator=generator)[rows]
    model.head(model(tokens)).logsumexp(-1).mean().backward()


def gradients(model):
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in grads.items()}


def built(config):
    model = build_model(config)
    initialise(model, config, seed=0)
    return model


def compare(run_config):
    layout = run_config.layout
    mesh = init_distributed(layout, rank_from_env(), torch.device("cpu"))
    config = MODELS["llama-grouped-tied"]
    alone = []
    for row in range(ROWS):
        model = built(config)
        backward(model, slice(row, row + 1))
        alone.append(gradients(model))
    model = built(config)
    parallelize(model, mesh, recompute=Recompute(), compile=False, precision=contextlib.nullcontext)
    set_gradient_sync(model, layout, is_last=True)
    backward(model, slice(mesh.rank, mesh.rank + 1))
    together = gradients(model)
    for name, ours in together.items():
        exact = sum(grads[name] for grads in alone) / ROWS
        assert ours.dtype == torch.float32
        is_bf16 = torch.equal(ours, ours.bfloat16().float())
        assert is_bf16 == (layout.reduce_dtype == "bf16"), name
        tolerance = 2**-7 if is_bf16 else 1e-6  # two roundings to 8 bits
        largest = torch.stack([grads[name].abs() for grads in alone]).amax(0)
        assert ((ours - exact).abs() <= tolerance * largest + 1e-9).all(), name


@pytest.mark.slow
def test_gradients_are_added_up_in_the_dtype_of_the_layout(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    layouts = [Layout(dp=2, zero=zero, reduce_dtype=dtype) for zero in (0, 3) for dtype in ("fp32", "bf16")]
    configs = [
        make_config(
            data,
            tmp_path / f"{layout.zero}{layout.reduce_dtype}",
            "layout.dp=2",
            f"layout.zero={layout.zero}",
            f"layout.reduce_dtype={layout.reduce_dtype}",
        )
        for layout in layouts
    ]
    train_on_ranks(2, configs, tmp_path, compare)
