"""This process among the ranks of a run: which one it is, and what they agree on together."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from groundup.core.errors import MachineError
from groundup.parallel.launched import Rank
from groundup.parallel.layout import Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    """One rank's view; alone, everything below costs nothing.

    Attributes:
        rank: Of this process, from 0.
        size: Number of ranks.
        layout: Worked out for these ranks.
        device: Of this rank.
        mesh: Axes "replicate", "shard", "tp"; None for one process alone.
    """

    rank: int
    size: int
    layout: Layout
    device: torch.device
    mesh: DeviceMesh | None

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.rank == 0

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.layout.dp

    @property
    def dp_rank(self) -> int:
        """Which share of each global batch this rank takes."""
        return self.rank // self.layout.tp

    def sum(self, values: Tensor) -> Tensor:
        """The sum over data-parallel ranks, in place."""
        if self.mesh is not None and self.dp > 1:
            dist.all_reduce(values, group=self.mesh.get_group("dp"))
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        if self.size == 1:
            return flag
        flags = torch.tensor(int(flag), device=self.device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return bool(flags)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Until all ranks have come here."""
        if self.size > 1:
            dist.barrier()


def assemble(layout: Layout, rank: Rank | None, device: torch.device) -> Team:
    """Joins the other ranks, where there are any.

    Args:
        layout: Of the run; checked by ``require_layout``.
        rank: Of this process; None when it runs alone.
        device: Its device; of several GPUs, the one of its local rank is taken.
    """
    if rank is None or rank.world_size == 1:
        return Team(rank=0, size=1, layout=layout.over(1), device=device, mesh=None)
    if device.type == "cuda":
        if rank.local_rank >= torch.cuda.device_count():
            raise MachineError(
                f"{rank.local_world_size} ranks are on this machine, and {torch.cuda.device_count()} GPUs",
                fix="Start as many ranks as there are GPUs, or set device=cpu.",
            )
        device = torch.device("cuda", rank.local_rank)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if not dist.is_initialized():
        dist.init_process_group(backend, rank=rank.rank, world_size=rank.world_size)
    layout = layout.over(rank.world_size)
    shape: Sequence[int] = (layout.dp // layout.shard, layout.shard, layout.tp)
    mesh = init_device_mesh(device.type, tuple(shape), mesh_dim_names=("replicate", "shard", "tp"))
    mesh["replicate", "shard"]._flatten("dp")
    return Team(rank=rank.rank, size=rank.world_size, layout=layout, device=device, mesh=mesh)
