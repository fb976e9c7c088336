"""The mesh of ranks: this process's coordinates, process groups and collectives."""

import dataclasses
import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from groundup.core.errors import MachineError
from groundup.launch.env import RankInfo
from groundup.parallel.layout import Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelMesh:
    """One rank's view of the mesh; with a single rank, collectives do nothing.

    Attributes:
        rank: Of this process, from 0.
        size: Number of ranks.
        layout: Resolved for these ranks.
        device: Of this rank.
        device_mesh: Axes "pp", "replicate", "shard", "tp"; None for one process alone. Ranks that share the
            tokens of a sequence (cp) count as data-parallel here: they have the same weights, and their
            gradients are summed.
        context: Ranks that share the tokens of this rank's sequences; None without context parallelism.
    """

    rank: int
    size: int
    layout: Layout
    device: torch.device
    device_mesh: DeviceMesh | None
    context: ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes and logs for all."""
        return self.rank == 0

    @property
    def dp(self) -> int:
        """Number of data-parallel ranks."""
        return self.layout.dp

    @property
    def dp_rank(self) -> int:
        """Index of this rank's share of each global batch."""
        return self.rank // (self.layout.cp * self.layout.tp) % self.layout.dp

    @property
    def cp_rank(self) -> int:
        """Index of this rank's share of each sequence's tokens."""
        return self.rank // self.layout.tp % self.layout.cp

    @property
    def pp_rank(self) -> int:
        """Index of this rank in its pipeline."""
        return self.rank // (self.layout.dp * self.layout.cp * self.layout.tp)

    @property
    def num_replicas(self) -> int:
        """Number of ranks over which gradients are averaged: those of other samples, and of other tokens."""
        return self.layout.dp * self.layout.cp

    def sum(self, values: Tensor, *, over_stages: bool = False) -> Tensor:
        """Sums over the ranks of other samples and tokens, in place; on request over stages too."""
        if self.device_mesh is not None and self.num_replicas > 1:
            dist.all_reduce(values, group=self.device_mesh.get_group("dp"))
        if self.device_mesh is not None and over_stages and self.layout.pp > 1:
            dist.all_reduce(values, group=self.device_mesh.get_group("pp"))
        return values

    @property
    def stages(self) -> ProcessGroup | None:
        """Ranks of this rank's pipeline; None without pipeline parallelism."""
        return (
            self.device_mesh.get_group("pp") if self.device_mesh is not None and self.layout.pp > 1 else None
        )

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is set on any rank."""
        if self.size == 1:
            return flag
        flags = torch.tensor(int(flag), device=self.device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return bool(flags)

    def all_gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in their order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.size > 1:
            dist.barrier()


def init_distributed(layout: Layout, rank: RankInfo | None, device: torch.device) -> ParallelMesh:
    """Initialises the process groups of a run, and returns this rank's mesh.

    Args:
        layout: Of the run; checked by ``validate_layout``.
        rank: Of this process; None when it runs alone.
        device: Of this process; of several GPUs, that of its local rank is taken.
    """
    if rank is None or rank.world_size == 1:
        return ParallelMesh(rank=0, size=1, layout=layout.over(1), device=device, device_mesh=None)
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
    # With ZeRO, context-parallel ranks shard weights as data-parallel ranks do; without, they replicate them.
    shard = layout.shard * layout.cp if layout.zero else 1
    device_mesh = init_device_mesh(
        device.type,
        (layout.pp, layout.dp * layout.cp // shard, shard, layout.tp),
        mesh_dim_names=("pp", "replicate", "shard", "tp"),
    )
    device_mesh["replicate", "shard"]._flatten("dp")
    # It warns that tensors sharded over two axes, as Muon's matrices are, are gathered axis by axis.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    context = None
    if layout.cp > 1:
        names = ("copies", "cp", "tp")
        sizes = (layout.pp * layout.dp, layout.cp, layout.tp)
        context = init_device_mesh(device.type, sizes, mesh_dim_names=names).get_group("cp")
    return ParallelMesh(
        rank=rank.rank,
        size=rank.world_size,
        layout=layout,
        device=device,
        device_mesh=device_mesh,
        context=context,
    )


def leave_distributed() -> None:
    """Ends the process groups of this rank, whose threads would abort the process at exit."""
    if dist.is_initialized():
        dist.destroy_process_group()
