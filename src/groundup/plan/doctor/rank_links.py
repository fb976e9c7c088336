"""Measures the links between the ranks of a mesh: all of them call ``measure`` together."""

import contextlib
import dataclasses
import datetime
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from groundup import __version__
from groundup.parallel.device import describe_device
from groundup.parallel.mesh import ParallelMesh
from groundup.plan.doctor.interfaces import Interface, interfaces, usable

_SIZES = (1 << 10, 1 << 15, 1 << 20, 1 << 25)
_LARGE = 1 << 28
"""Bytes of an all-reduce; the last on GPUs only."""
_SECONDS = 0.3
_BY_INTERFACE = 1 << 22
_CLOCK_TURNS = 8
_GLOO = "GLOO_SOCKET_IFNAME"

OnProgress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class RankReport:
    """What one rank tells of itself.

    Attributes:
        rank: Its number.
        host: Name of its machine.
        device: In words.
        versions: Of all that ranks must agree on.
        interfaces: Of its machine.
        work_seconds: Of a product of matrices that is the same for all.
        clock_offset: Of its clock against rank 0's, in seconds.
        clock_error: Largest error of that.
        next_bytes_per_second: To the next rank; 0 for the last of two.
    """

    rank: int
    host: str
    device: str
    versions: dict[str, str]
    interfaces: list[Interface]
    work_seconds: float = 0.0
    clock_offset: float = 0.0
    clock_error: float = 0.0
    next_bytes_per_second: float = 0.0


@dataclasses.dataclass(frozen=True)
class Links:
    """What was measured.

    Attributes:
        ranks: Reports of all.
        all_reduce: Bytes -> seconds of one all-reduce.
        by_interface: Name -> bytes a second of an all-reduce by gloo over it; 0 where it did not work.
        backend: That of the all-reduce.
    """

    ranks: list[RankReport]
    all_reduce: dict[int, float]
    by_interface: dict[str, float]
    backend: str

    def bus_rate(self, size: int) -> float:
        """Bytes a second that each rank sends, and receives, in an all-reduce by a ring."""
        count = len(self.ranks)
        return 2 * (count - 1) / count * size / self.all_reduce[size]


def measure(mesh: ParallelMesh, *, quick: bool, on_progress: OnProgress = lambda _: None) -> Links:
    """Measures between all ranks; every rank returns the same.

    Args:
        mesh: Of two ranks at least.
        quick: Leave out sizes above 1 MiB.
        on_progress: Told what is done next.
    """
    assert mesh.size > 1, "one rank has no links"
    on_progress("speed of each rank")
    report = _self_report(mesh)
    report = dataclasses.replace(report, work_seconds=_work(mesh))
    sizes = [size for size in _SIZES if not quick or size <= 1 << 20]
    sizes += [_LARGE] * (mesh.device.type == "cuda" and not quick)
    seconds = {}
    for size in sizes:
        on_progress(f"all-reduce of {size >> 10:,} KiB")
        seconds[size] = _seconds_of_all_reduce(mesh, size)
    on_progress("neighbours")
    rate = _to_next(mesh, 1 << 20 if quick else 1 << 24)
    on_progress("clocks")
    offset, error = _clocks(mesh)
    done = dataclasses.replace(report, clock_offset=offset, clock_error=error, next_bytes_per_second=rate)
    reports: list[RankReport] = mesh.all_gather(done)
    hosts = {one.host: one.interfaces for one in reports}
    rates = {}
    for name in usable(list(hosts.values())):
        on_progress(f"interface {name}")
        rates[name] = _over_interface(mesh, name)
    return Links(reports, seconds, rates, "nccl" if mesh.device.type == "cuda" else "gloo")


def _self_report(mesh: ParallelMesh) -> RankReport:
    versions = {
        "groundup": __version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or "none",
    }
    if mesh.device.type == "cuda":
        versions["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return RankReport(mesh.rank, socket.gethostname(), describe_device(mesh.device), versions, interfaces())


def _work(mesh: ParallelMesh) -> float:
    """Seconds of a product of matrices, while all ranks compute it."""
    size, dtype = (8192, torch.bfloat16) if mesh.device.type == "cuda" else (512, torch.float32)
    matrix = torch.ones(size, size, dtype=dtype, device=mesh.device)
    found = []
    for _ in range(5):
        mesh.barrier()
        found.append(_timed(mesh, lambda: matrix @ matrix))
    return min(found)


def _seconds_of_all_reduce(mesh: ParallelMesh, size: int) -> float:
    tensor = torch.zeros(size // 4, device=mesh.device)
    dist.all_reduce(tensor)  # buffers are made
    first = torch.tensor(_timed(mesh, lambda: dist.all_reduce(tensor)), device=mesh.device)
    dist.all_reduce(first, dist.ReduceOp.MAX)  # so that all repeat it as often
    count = max(3, min(200, int(_SECONDS / max(float(first), 1e-6))))
    return statistics.median(_timed(mesh, lambda: dist.all_reduce(tensor)) for _ in range(count))


def _to_next(mesh: ParallelMesh, size: int) -> float:
    """Bytes a second to the next rank, one pair after the other."""
    tensor = torch.zeros(size // 4, device=mesh.device)
    found = 0.0
    for first in range(mesh.size if mesh.size > 2 else 1):
        second = (first + 1) % mesh.size
        if mesh.rank in (first, second):
            there, back = (dist.send, dist.recv) if mesh.rank == first else (dist.recv, dist.send)
            other = second if mesh.rank == first else first

            def turn(there: Callable[..., object] = there, back: Callable[..., object] = back,
                     other: int = other) -> None:  # fmt: skip
                there(tensor, other)
                back(tensor, other)

            turn()
            seconds = min(_timed(mesh, turn) for _ in range(3))
            found = 2 * size / seconds if mesh.rank == first else found
        mesh.barrier()
    return found


def _clocks(mesh: ParallelMesh) -> tuple[float, float]:
    """This rank's clock against rank 0's, by Cristian's method: answers come in mid-round-trip."""
    found = (0.0, 0.0)
    cell = torch.zeros(2, dtype=torch.float64)
    for other in range(1, mesh.size):
        if mesh.rank == 0:
            cell = torch.tensor(_ask_time(other), dtype=torch.float64)
            dist.send(cell, other)
        elif mesh.rank == other:
            for _ in range(_CLOCK_TURNS):
                dist.recv(cell, 0)
                dist.send(torch.tensor([time.time(), 0.0], dtype=torch.float64), 0)
            dist.recv(cell, 0)
            found = (float(cell[0]), float(cell[1]))
    mesh.barrier()
    return found


def _ask_time(other: int) -> tuple[float, float]:
    found = []
    cell = torch.zeros(2, dtype=torch.float64)
    for _ in range(_CLOCK_TURNS):
        sent = time.time()
        dist.send(cell, other)
        dist.recv(cell, other)
        received = time.time()
        found.append(((received - sent) / 2, float(cell[0]) - (sent + received) / 2))
    error, offset = min(found)
    return offset, error


def _over_interface(mesh: ParallelMesh, name: str) -> float:
    """Bytes a second of an all-reduce over one interface by gloo; 0 where ranks do not meet over it."""
    tensor = torch.zeros(_BY_INTERFACE // 4)
    with _environment(_GLOO, name):
        try:
            group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=15))
            dist.all_reduce(tensor, group=group)
            seconds = min(_timed(mesh, lambda: dist.all_reduce(tensor, group=group)) for _ in range(3))
            dist.destroy_process_group(group)
        except RuntimeError:  # of gloo: no route, or an address that is not that of the others
            seconds = 0.0
    found = mesh.all_gather(_BY_INTERFACE / seconds if seconds else 0.0)
    return min(map(float, found))


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _timed(mesh: ParallelMesh, work: Callable[[], Tensor | object]) -> float:
    _finish(mesh)
    began = time.perf_counter()
    work()
    _finish(mesh)
    return time.perf_counter() - began


def _finish(mesh: ParallelMesh) -> None:
    if mesh.device.type == "cuda":
        torch.cuda.synchronize(mesh.device)
