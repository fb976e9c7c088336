"""What ranks of a machine run on."""

import pytest

from groundup.core.errors import MachineError
from groundup.plan.local_devices import devices_of
from tests.unit.plan.test_doctor import CUDA_BUILD, H100, V100, machine

GIB = 1 << 20  # in /proc/meminfo's kB
MEMORY = {"proc__meminfo": f"MemTotal: {64 * GIB} kB\nMemAvailable: {48 * GIB} kB\n"}


def with_gpus(folder, *gpus):
    return machine(folder, gpus=gpus, facts={**CUDA_BUILD, "gpus": [gpu.name for gpu in gpus]}, **MEMORY)


def test_ranks_of_a_cpu_share_what_is_free(tmp_path):
    here = machine(tmp_path, **MEMORY)
    for ranks, gib in ((0, 48), (1, 48), (4, 12)):
        found = devices_of(here, "auto", ranks)
        assert (found.device, found.planned.ranks) == ("cpu", max(1, ranks))
        assert found.planned.memory_gib == gib and found.planned.usable == pytest.approx(0.92 * gib * 2**30)
    assert devices_of(machine(tmp_path / "unknown"), "cpu", 2).planned.usable == 0


def test_each_gpu_has_a_rank_and_the_least_memory_counts(tmp_path):
    here = with_gpus(tmp_path, H100, V100)
    for device, ranks, count in (("auto", 0, 2), ("cuda", 0, 2), ("cuda", 1, 1)):
        found = devices_of(here, device, ranks)
        assert (found.device, found.name, found.planned.ranks) == ("cuda", H100.name, count)
        assert found.planned.kind is not None and found.planned.kind.name == "H100"
        assert found.planned.memory_gib == 16
    assert devices_of(here, "cpu", 0).device == "cpu"


@pytest.mark.parametrize(("gpus", "ranks"), [((H100,), 2), ((), 0), ((), 1)])
def test_ranks_without_a_gpu_are_refused(tmp_path, gpus, ranks):
    with pytest.raises(MachineError, match=rf"PyTorch sees {len(gpus)}"):
        devices_of(with_gpus(tmp_path, *gpus), "cuda", ranks)


def test_a_torch_that_cannot_be_imported(tmp_path):
    here = machine(tmp_path, facts={"import_error": "libcudart.so.13: no such file", "is_missing": False})
    with pytest.raises(MachineError, match="libcudart"):
        devices_of(here, "auto", 0)
