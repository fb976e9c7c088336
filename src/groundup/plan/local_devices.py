"""The devices of this machine, as far as a run may use them."""

import dataclasses
from pathlib import Path
from typing import Literal

from groundup.core.errors import MachineError
from groundup.plan.device_table import ACCELERATORS, GIB
from groundup.plan.devices import Devices
from groundup.plan.doctor.finding import Machine
from groundup.plan.doctor.processor import allowed_cores, memory_room
from groundup.plan.doctor.torch_child import torch_child


@dataclasses.dataclass(frozen=True)
class LocalDevices:
    """What ranks run on.

    Attributes:
        device: Setting of a run.
        name: In words.
        torch: Version.
        planned: For the model of memory and time.
    """

    device: Literal["cpu", "cuda"]
    name: str
    torch: str
    planned: Devices


def local_devices(device: Literal["auto", "cpu", "cuda"], ranks: int, run_dir: Path) -> LocalDevices:
    """Returns the devices of this machine; PyTorch is asked in another process, so that no GPU is taken.

    Args:
        device: Of the config.
        ranks: That share the machine; 0 for one on each GPU, or a single one on a CPU.
        run_dir: Of the config.

    Raises:
        MachineError: There are fewer GPUs than ranks, or PyTorch cannot be asked.
    """
    with torch_child(compiles=False) as child:
        return devices_of(Machine.this(run_dir, child), device, ranks)


def devices_of(machine: Machine, device: Literal["auto", "cpu", "cuda"], ranks: int) -> LocalDevices:
    """Returns the devices of a machine; see ``local_devices``."""
    facts = machine.torch.facts()
    if "auto" not in facts:
        raise MachineError(
            f"PyTorch cannot be imported: {facts['import_error']}",
            fix="`groundup doctor` says more.",
        )
    version, names = facts["version"], facts["gpus"]
    if device == "cpu" or (device == "auto" and facts["device"] == "cpu"):
        ranks = ranks or 1
        room = memory_room(machine)
        gib = room.free / GIB / ranks if room else 0.0
        name = f"{allowed_cores()} CPU cores"
        return LocalDevices("cpu", name, version, Devices(memory_gib=gib, ranks=ranks, per_machine=ranks))
    ranks = ranks or max(1, len(names))
    if ranks > len(names):
        raise MachineError(
            f"{ranks} ranks need as many GPUs, PyTorch sees {len(names)}",
            where="--ranks",
            fix="Give fewer, or device=cpu.",
        )
    memory = min((gpu.memory_mib for gpu in machine.driver.gpus), default=0) / 1024
    known = next((one for one in ACCELERATORS if one.name in names[0]), None)
    return LocalDevices(
        "cuda", names[0], version, Devices(kind=known, memory_gib=memory, ranks=ranks, per_machine=ranks)
    )
