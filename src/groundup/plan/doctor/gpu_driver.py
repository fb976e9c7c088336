"""GPUs and their driver, as nvidia-smi tells: it needs no PyTorch."""

import dataclasses
import re
import shutil
import subprocess

_FIELDS = "name,memory.total,memory.used,driver_version,compute_cap"
_SECONDS = 20


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: As its maker calls it.
        memory_mib: All of its memory.
        used_mib: What is taken now.
        capability: Compute capability, such as (9, 0).
    """

    name: str
    memory_mib: int
    used_mib: int
    capability: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class GpuReport:
    """What the driver says.

    Attributes:
        gpus: In its order.
        driver: Its version.
        cuda: Newest CUDA that it can run.
        error: Why it does not answer; empty where it does, or where there is no nvidia-smi.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: tuple[int, int] = (0, 0)
    error: str = ""


def ask_driver() -> GpuReport:
    """Asks nvidia-smi; an empty report where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return GpuReport()
    try:
        table = _run([program, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"])
        header = _run([program])
    except subprocess.TimeoutExpired:
        return GpuReport(error=f"nvidia-smi does not answer within {_SECONDS} seconds")
    except (subprocess.CalledProcessError, OSError) as error:
        said = getattr(error, "stdout", "") or str(error)
        return GpuReport(error=" ".join(str(said).split()))
    return parse_report(table, header)


def parse_report(table: str, header: str) -> GpuReport:
    """Reads nvidia-smi's table (``--query-gpu``) and the header of its overview."""
    gpus, driver = [], ""
    for line in table.strip().splitlines():
        name, memory, used, driver, capability = (field.strip() for field in line.split(","))
        major, _, minor = capability.partition(".")
        gpus.append(Gpu(name, _number(memory), _number(used), (_number(major), _number(minor))))
    found = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", header)
    return GpuReport(tuple(gpus), driver, (int(found[1]), int(found[2])) if found else (0, 0))


def _run(words: list[str]) -> str:
    return subprocess.run(  # noqa: S603  # the driver's own program
        words, capture_output=True, text=True, check=True, timeout=_SECONDS
    ).stdout


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0  # "[N/A]" of some boards
