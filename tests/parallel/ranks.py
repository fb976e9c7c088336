"""Trains configs on several gloo ranks of this machine: one set of processes for all of them."""

import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch.multiprocessing

from groundup.train.config import TrainConfig
from tests.runs import run

multiprocessing.set_forkserver_preload([__name__])
StartMethod = Literal["forkserver", "spawn"]


def start_ranks(
    function: Callable[..., None], arguments: tuple, world_size: int, start_method: StartMethod = "forkserver"
) -> torch.multiprocessing.ProcessContext:
    """Calls ``function(rank, *arguments)`` in as many new processes; ``join`` raises what the first raises.

    By default they are forks of a server that has imported this module, hence torch, and does nothing else:
    each begins as one that is spawned, but without its three seconds of imports.
    """
    with_environment = (dict(os.environ), function, arguments)
    return torch.multiprocessing.start_processes(
        _in_environment, with_environment, world_size, join=False, start_method=start_method
    )


def _in_environment(
    rank: int, environment: dict[str, str], function: Callable[..., None], arguments: tuple
) -> None:
    """Calls the function in the environment of who asked, not that of the server's start."""
    os.environ.clear()
    os.environ.update(environment)
    function(rank, *arguments)


def train_on_ranks(
    world_size: int,
    configs: Sequence[TrainConfig],
    folder: Path,
    work: Callable[[TrainConfig], object] = run,
    *,
    start_method: StartMethod = "forkserver",
) -> None:
    """Trains the configs one after the other, each on all ranks; what they write is in their run folders.

    Args:
        world_size: Number of ranks.
        configs: What to train.
        folder: For what the ranks are told.
        work: What to do with each config instead, a function of a module.
        start_method: "spawn" where memory is measured or orders of sets matter: a fork has its parent's.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = folder / f"configs-{port}.pickle"
    file.write_bytes(pickle.dumps((list(configs), work)))
    ranks = start_ranks(_rank, (world_size, port, file), world_size, start_method)
    while not ranks.join():
        pass


def _rank(rank: int, world_size: int, port: int, file: Path) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    import torch.distributed as dist

    configs, work = pickle.loads(file.read_bytes())
    for config in configs:
        try:
            work(config)
        except Exception:
            (config.run_dir.parent / f"{config.run_dir.name}.rank{rank}.error").write_text(
                traceback.format_exc()
            )
            raise
    dist.destroy_process_group()
