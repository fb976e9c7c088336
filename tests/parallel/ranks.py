"""Trains configs on several gloo ranks of this machine: one set of processes for all of them."""

import os
import pickle
import socket
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch.multiprocessing

from groundup.train.config import TrainConfig


def train_on_ranks(world_size: int, configs: Sequence[TrainConfig], folder: Path) -> None:
    """Trains the configs one after the other, each on all ranks; what they write is in their run folders."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    work = folder / "configs.pickle"
    work.write_bytes(pickle.dumps(list(configs)))
    torch.multiprocessing.spawn(_rank, (world_size, port, work), nprocs=world_size)


def _rank(rank: int, world_size: int, port: int, work: Path) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    import torch.distributed as dist

    from tests.runs import run

    for config in pickle.loads(work.read_bytes()):
        try:
            run(config)
        except Exception:
            (config.run_dir.parent / f"{config.run_dir.name}.rank{rank}.error").write_text(
                traceback.format_exc()
            )
            raise
    dist.destroy_process_group()
