"""Verbs that run over the ranks of a layout, besides training: starts them on this machine, or joins them."""

import contextlib
import dataclasses
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from groundup.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from groundup.checkpoint.lazy import LoadedModel
    from groundup.cli.options import GenerationDtype, ModelOptions
    from groundup.models import ModelConfig, WeightDtypes
    from groundup.parallel.device import Precision, PrecisionName
    from groundup.parallel.layout import Layout
    from groundup.parallel.mesh import ParallelMesh

_LAYOUT = "layout."


def layout_of(settings: Sequence[str]) -> "tuple[Layout, list[str]]":
    """Returns the layout that settings such as ``layout.tp=2`` describe, and the other settings.

    Raises:
        ConfigError: It is none, or has degrees that only training knows.
    """
    from groundup.core.config import config, from_tree
    from groundup.core.config_sources import read_overrides
    from groundup.parallel.layout import Layout

    @config
    class _Holder:
        layout: Layout = Layout()

    mine = [setting for setting in settings if setting.startswith(_LAYOUT)]
    layout = from_tree(_Holder, *read_overrides(mine)).layout
    if layout.cp > 1 or layout.zero or layout.shard or layout.reduce_dtype != Layout.reduce_dtype:
        raise ConfigError(
            "cp, zero, shard and reduce_dtype are of training",
            where=f"command line ({' '.join(mine)})",
            fix="Spread the items by layout.dp, and a model that is too large by layout.tp and layout.pp.",
        )
    return layout, [setting for setting in settings if setting not in mine]


def undivided_layout(settings: Sequence[str]) -> "Layout":
    """Returns the layout of one engine.

    Raises:
        ConfigError: There are other settings, or replicas.
    """
    from groundup.inference.rank_model import NO_REPLICAS, REPLICAS

    layout, others = layout_of(settings)
    if others:
        raise ConfigError(f"{' '.join(others)} is no setting", fix="Write layout.tp=2 or layout.pp=2.")
    if layout.dp > 1:
        raise ConfigError(REPLICAS, where="layout.dp", fix=NO_REPLICAS)
    return layout


def generation_dtypes(
    dtype: "GenerationDtype", layout: "Layout", device: Literal["auto", "cpu", "cuda"]
) -> "tuple[torch.dtype, WeightDtypes]":
    """Returns the dtype of an engine, and those in which its model is loaded.

    Raises:
        ConfigError, MachineError: There are no kernels for it.
    """
    import torch

    from groundup.inference.int8_linear import require_int8
    from groundup.models import WeightDtypes
    from groundup.parallel.device import choose_device

    if dtype != "int8":
        found: torch.dtype = getattr(torch, dtype)
        return found, WeightDtypes(default=found)
    require_int8(choose_device(device), layout.num_ranks)
    return torch.int8, WeightDtypes(default=torch.bfloat16)


def start_ranks(layout: "Layout", *, with_stdin: bool = False) -> None:
    """Runs this command line once more on each rank of a layout of several, unless a launcher has.

    Args:
        layout: Of the verb.
        with_stdin: Whether the first rank reads our standard input.

    Raises:
        SystemExit: With the exit code of the ranks, where it started them.
    """
    from groundup.launch.env import is_torchrun_worker, rank_from_env
    from groundup.launch.launcher import run_ranks

    if layout.num_ranks > 1 and rank_from_env() is None and not is_torchrun_worker():
        code = run_ranks(
            layout.num_ranks, sys.argv[1:], modules=["groundup.parallel.mesh"], with_stdin=with_stdin
        )
        raise SystemExit(code)


@contextlib.contextmanager
def joined(layout: "Layout", device: Literal["auto", "cpu", "cuda"]) -> "Iterator[ParallelMesh]":
    """Joins the ranks of a layout while entered, of which the first alone logs; one process is one rank."""
    from groundup.core.log import logger
    from groundup.launch.env import rank_from_env
    from groundup.launch.rank_log import prefix_log_lines
    from groundup.parallel.device import choose_device
    from groundup.parallel.mesh import init_distributed, leave_distributed

    rank = rank_from_env()
    if rank is None and layout.num_ranks > 1:
        raise ConfigError(f"{layout.num_ranks} ranks, and torchrun started one", where="layout")
    if rank is not None:
        prefix_log_lines(rank.rank)
        if layout.over(rank.world_size).num_ranks != rank.world_size:
            raise ConfigError(
                f"{layout.num_ranks} ranks are wanted, {rank.world_size} were started",
                where="layout",
                fix="Start as many, or leave layout.dp out.",
            )
    mesh = init_distributed(layout, rank, choose_device(device))
    if not mesh.is_first:
        logger.setLevel(logging.WARNING)  # all would log the same
    yield mesh
    leave_distributed()  # only in success: after a failure it would wait for ranks that are gone


def open_to_measure(
    path: Path, model: "ModelOptions", mesh: "ParallelMesh", precision: "PrecisionName"
) -> "LoadedModel":
    """Opens a model to be used in a precision, as ``open_over_ranks``.

    Linear layers have the weights to which autocast would round them, without a copy in fp32 beside them.

    Raises:
        CheckpointError, ConfigError: As ``open_over_ranks``.
        MachineError: The hardware lacks the precision.
    """
    from groundup.models import WeightDtypes
    from groundup.parallel.device import choose_precision

    chosen = choose_precision(precision, mesh.device)
    return open_over_ranks(path, model, mesh, WeightDtypes(linear=chosen.dtype), precision=chosen)


def open_over_ranks(
    path: Path,
    model: "ModelOptions",
    mesh: "ParallelMesh",
    dtypes: "WeightDtypes",
    *,
    precision: "Precision | None" = None,
) -> "LoadedModel":
    """Opens a model on the ranks of a mesh, each of which reads its part.

    Args:
        path: The model.
        model: Which of its weights, and where.
        mesh: Of the ranks.
        dtypes: Of the weights.
        precision: Of a pipeline stage's forward pass; by default it computes in the weights' dtype.

    Raises:
        CheckpointError: There is none, or no average where that is asked for.
        ConfigError: The model cannot be spread so.
    """
    from groundup.checkpoint.formats import open_lazy
    from groundup.checkpoint.load_over_ranks import load_over_ranks

    if mesh.size == 1:
        return model.open(path, dtypes)
    stored = open_lazy(path, **model.of_stored())
    _require_divisible(mesh, stored.config)
    context = precision.autocast if precision else contextlib.nullcontext
    return load_over_ranks(stored, mesh, precision=context, dtypes=dtypes)


def _require_divisible(mesh: "ParallelMesh", model: "ModelConfig") -> None:
    from groundup.parallel.validate import validate_layout

    divisible = math.lcm(*range(1, mesh.size + 1))  # rows are padded, and micro-batches are of any number
    validate_layout(
        dataclasses.replace(mesh.layout, shard=0),  # as it is given
        model,
        sequence_length=divisible,
        batch_sizes=[divisible],
        micro_batch_size=1,
        world_size=mesh.size,
        is_fixed=False,
    )
