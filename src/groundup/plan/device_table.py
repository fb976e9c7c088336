"""Accelerators: memory, power and speed, from the makers' data sheets."""

import dataclasses

from groundup.core.errors import ConfigError
from groundup.parallel.device import PEAK_TFLOPS

GIB = 1 << 30
_WITH_FP8 = frozenset({"B200", "H200", "H100 PCIe", "H100", "L40S", "L4", "RTX 4090"})


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A device that a run may be planned for.

    Attributes:
        memory_gib: Nominal; the driver and NCCL take some of it.
        watts: Most that the board draws.
        fp32_tflops: Without tensor cores, as our fp32 products run.
        link_gb: GB/s to the others of the machine, in one direction: NVLink, else PCI Express.
        memory_gb: GB/s of its own memory.
        reached: Share of the peak that a 16-bit product of the best shape reaches, as measured.
        has_bf16: In hardware.
    """

    name: str
    memory_gib: float
    watts: int
    fp32_tflops: float
    link_gb: float
    memory_gb: float
    reached: float = 0.8
    has_bf16: bool = True

    @property
    def has_fp8(self) -> bool:
        """In hardware, in the formats that we train in."""
        return self.name in _WITH_FP8

    def peak_flops(self, precision: str) -> float:
        """Floating-point operations a second of dense products."""
        return 1e12 * (self.fp32_tflops if precision == "fp32" else PEAK_TFLOPS[self.name])


ACCELERATORS = tuple(
    Accelerator(*row)
    for row in (
        # NVIDIA's and AMD's data sheets of each: memory, board power, fp32, link in one direction, rate of
        # the memory. The share reached is from github.com/stas00/ml-engineering, compute/accelerator,
        # "Maximum Achievable Matmul FLOPS comparison table" (October 2026); 0.8 where it has none.
        ("B200", 180, 1000, 80.0, 900, 8000, 0.776),
        ("H200", 141, 700, 67.0, 450, 4800, 0.803),
        ("H100 PCIe", 80, 350, 51.0, 64, 2000),
        ("H100", 80, 700, 67.0, 450, 3350, 0.803),
        ("A100", 80, 400, 19.5, 300, 2039, 0.869),
        ("A800", 80, 400, 19.5, 200, 2039, 0.869),
        ("L40S", 48, 350, 91.6, 32, 864),
        ("A40", 48, 300, 37.4, 32, 696),
        ("A10", 24, 150, 31.2, 32, 600),
        ("L4", 24, 72, 30.3, 32, 300),
        ("V100", 32, 300, 15.7, 150, 900, 0.8, False),
        ("T4", 16, 70, 8.1, 16, 320, 0.8, False),
        ("RTX 4090", 24, 450, 82.6, 32, 1008),
        ("RTX 3090", 24, 350, 35.6, 32, 936),
        ("MI300X", 192, 750, 163.4, 448, 5300, 0.514),
        ("MI250X", 128, 560, 47.9, 400, 3277),
    )
)


def accelerator(name: str) -> Accelerator:
    """Returns the device of a name, in any case, with or without blanks and hyphens.

    Raises:
        ConfigError: It is not in the table.
    """
    for one in ACCELERATORS:
        if _plain(one.name) == _plain(name):
            return one
    known = ", ".join(one.name for one in ACCELERATORS)
    raise ConfigError(
        f"no device {name!r} is known",
        where="--gpu",
        fix=f"Known are {known}. For another: --memory, and --tokens-per-second as measured.",
    )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
