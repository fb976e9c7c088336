"""Trains configs on several gloo ranks of this machine: one set of processes for all of them."""

import os
import pickle
import socket
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch.multiprocessing

from groundup.train.config import TrainConfig
from tests.runs import run


def train_on_ranks(
    world_size: int,
    configs: Sequence[TrainConfig],
    folder: Path,
    work: Callable[[TrainConfig], object] = run,
) -> None:
    """Trains the configs one after the other, each on all ranks; what they write is in their run folders.

    Args:
        world_size: Number of ranks.
        configs: What to train.
        folder: For what the ranks are told.
        work: What to do with each config instead, a function of a module.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = folder / f"configs-{port}.pickle"
    file.write_bytes(pickle.dumps((list(configs), work)))
    torch.multiprocessing.spawn(_rank, (world_size, port, file), nprocs=world_size)


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
