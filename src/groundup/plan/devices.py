"""What a plan is for: devices, their machines, and the links between them."""

import dataclasses

from groundup.plan.device_table import GIB, Accelerator, accelerator
from groundup.plan.kernel_time import Rates, rates_of
from groundup.plan.step_time import Machines
from groundup.train.stability.oom import USABLE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """What a plan is for.

    Attributes:
        kind: None where only the memory is known, or nothing.
        memory_gib: Of each; 0 where it is not known.
        ranks: Number of devices; 0 for as many as the layout names.
        per_machine: Devices of a machine.
        mfu: Share of the peak that the model's own operations reach; 0 to go by ``step_time``.
        tokens_per_second: Of all ranks, as measured; 0 to go by ``mfu``.
        link_gb: GB/s between devices of a machine; 0 for the device's own.
        network_gb: GB/s of a device to those of other machines.
        link_latency: Seconds of a collective within a machine besides its bytes.
        network_latency: Seconds besides for each further machine.
    """

    kind: Accelerator | None = None
    memory_gib: float = 0.0
    ranks: int = 0
    per_machine: int = 8
    mfu: float = 0.0
    tokens_per_second: float = 0.0
    link_gb: float = 0.0
    network_gb: float = 50.0
    link_latency: float = 25e-6
    network_latency: float = 12e-6

    def machines(self, precision: str) -> Machines:
        """Returns what a step runs on; without a device's name, machines of A100s.

        Under a given ``mfu`` that share counts in all that a rank does by itself.
        """
        kind = self.kind or accelerator("A100")
        peak = kind.peak_flops(precision)
        return Machines(
            rates=Rates(flops=self.mfu * peak) if self.mfu else rates_of(kind, precision),
            peak=peak,
            link_gb=self.link_gb or kind.link_gb,
            network_gb=self.network_gb,
            per_machine=self.per_machine,
            link_latency=self.link_latency,
            network_latency=self.network_latency,
        )

    @property
    def usable(self) -> float:
        """Bytes that tensors may take; 0 where it is not known."""
        gib = self.memory_gib or (self.kind.memory_gib if self.kind else 0.0)
        return gib * GIB * USABLE
