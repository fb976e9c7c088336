"""GPUs, their driver, PyTorch's build for them, NCCL, and the number formats."""

import platform
from collections.abc import Iterator
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from groundup.plan.doctor.finding import Finding, Machine
from groundup.plan.doctor.optional_parts import requirements_of

_NVIDIA = "0x10de"
_BUSY = 0.1
_WHEELS = "https://download.pytorch.org/whl"


def gpus(machine: Machine) -> Iterator[Finding]:
    """GPUs with memory and compute capability; those that no driver serves; those that others use."""
    report = machine.driver
    if report.error:
        yield Finding(
            "GPUs",
            "problem",
            f"nvidia-smi fails: {report.error}",
            "Without its driver no GPU can be used.",
            "After an update of the driver: restart the machine. In a container: start it with --gpus all.",
        )
    elif not report.gpus and _on_bus(machine):
        yield Finding(
            "GPUs",
            "problem",
            f"{_on_bus(machine)} of NVIDIA on the bus, and no nvidia-smi",
            "Without its driver no GPU can be used.",
            "Install NVIDIA's driver (Debian, Ubuntu: apt install nvidia-driver), or start the container with"
            " --gpus all (nvidia-container-toolkit).",
        )
    elif not report.gpus:
        yield Finding("GPUs", "ok", "none: training runs on the CPU")
    for number, gpu in enumerate(report.gpus):
        size = f"{gpu.memory_mib / 1024:.1f} GiB"
        found = f"{number}: {gpu.name}, {size}, compute capability {_dotted(gpu.capability)}"
        if gpu.used_mib > _BUSY * gpu.memory_mib:
            yield Finding(
                "GPUs",
                "warning",
                f"{found}, {gpu.used_mib / 1024:.1f} GiB of it taken",
                "Another process uses it: memory may not suffice, and steps take turns.",
                "nvidia-smi names the process; CUDA_VISIBLE_DEVICES chooses other GPUs.",
            )
        else:
            yield Finding("GPUs", "ok", found)


def driver(machine: Machine) -> Iterator[Finding]:
    """The driver's version against the CUDA that PyTorch was built for."""
    report = machine.driver
    if not report.gpus:
        return
    found = f"{report.driver}, for CUDA up to {_dotted(report.cuda)}"
    built = machine.torch.facts().get("cuda")
    if built and int(built.split(".")[0]) > report.cuda[0]:
        yield Finding(
            "driver",
            "problem",
            f"{found}; torch is built for CUDA {built}",
            "CUDA of a later major version does not start on this driver.",
            f"Update the driver, or type: {install_line(machine)}",
        )
    else:
        yield Finding("driver", "ok", found)


def torch(machine: Machine) -> Iterator[Finding]:
    """PyTorch's version and build: one that has the GPUs of this machine."""
    facts = machine.torch.facts()
    wanted = _torch_requirement()
    if facts.get("is_missing"):
        yield Finding(
            "torch",
            "warning",
            "not installed",
            "Data can be prepared without; training, evaluation and generation need it.",
            "pip install 'groundup[train]'" if not machine.driver.gpus else install_line(machine),
        )
        return
    if "import_error" in facts:
        yield Finding(
            "torch", "problem", f"cannot be imported: {facts['import_error']}", "", install_line(machine)
        )
        return
    build = (
        f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU only"
    )
    found = f"{facts['version']} ({build})"
    if not wanted.specifier.contains(Version(facts["version"]).base_version, prereleases=True):
        why = f"groundup is made for torch{wanted.specifier}."
        yield Finding("torch", "problem", found, why, install_line(machine))
    elif machine.driver.gpus:
        yield _torch_for_gpus(machine, facts, found)
    else:
        yield Finding("torch", "ok", found)


def _torch_for_gpus(machine: Machine, facts: dict[str, Any], found: str) -> Finding:
    line = install_line(machine)
    if not facts["cuda"] and not facts["hip"]:
        why = f"It cannot use the {len(machine.driver.gpus)} GPUs of this machine."
        return Finding("torch", "problem", found, why, line)
    if not facts["gpus"]:
        hidden = machine.environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        why = facts["cuda_error"] or "It sees no GPU, and the driver does."
        fix = "unset CUDA_VISIBLE_DEVICES" if hidden else f"Update the driver, or type: {line}"
        return Finding("torch", "problem", f"{found}, which starts no GPU", why, fix)
    architectures = [name.partition("_")[2].rstrip("af") for name in facts["architectures"]]
    oldest = min((int(name) for name in architectures if name.isdecimal()), default=0)
    for gpu in machine.driver.gpus:
        if 10 * gpu.capability[0] + gpu.capability[1] < oldest:
            why = f"This build has no kernels for {gpu.name} (compute capability {_dotted(gpu.capability)})."
            return Finding("torch", "problem", f"{found} for {', '.join(facts['architectures'])}", why, line)
    return Finding("torch", "ok", f"{found}, {len(facts['gpus'])} GPUs")


def nccl(machine: Machine) -> Iterator[Finding]:
    """NCCL, by which GPUs talk to each other, and cuDNN."""
    facts = machine.torch.facts()
    if not facts.get("gpus"):
        return
    if facts["nccl"]:
        yield Finding("NCCL", "ok", f"{facts['nccl']}, cuDNN {facts['cudnn']}")
    elif len(facts["gpus"]) > 1:
        why = "Several GPUs train together by it."
        yield Finding("NCCL", "problem", "not in this build of torch", why, install_line(machine))


def precision(machine: Machine) -> Iterator[Finding]:
    """Number formats of the device that a run would take."""
    facts = machine.torch.facts()
    if "auto" not in facts:
        return
    formats = [name for name in ("bf16", "fp16") if name not in facts["missing"]] + ["fp32"]
    formats += ["fp8"] * facts["fp8"]
    found = f"{', '.join(formats)}; precision auto takes {facts['auto']}"
    reasons = "; ".join(f"no {name}: {reason}" for name, reason in facts["missing"].items())
    yield Finding("precision", "ok", found + (f" ({reasons})" if reasons else ""))


def install_line(machine: Machine) -> str:
    """What installs the PyTorch that fits the driver and the GPUs."""
    wanted = f"pip install --force-reinstall '{_torch_requirement()}'"
    report = machine.driver
    if not report.gpus:
        return wanted
    if platform.system() != "Linux":
        return f"{wanted} --index-url {_WHEELS}/cu126"
    is_old = min(gpu.capability for gpu in report.gpus) < (7, 5)  # CUDA 13 and later 12s have no Volta
    newest = "cu130" if report.cuda >= (13, 0) else "cu128" if report.cuda >= (12, 8) else "cu126"
    build = "cu126" if is_old else newest
    return f"{wanted} --index-url {_WHEELS}/{build}"


def _torch_requirement() -> Requirement:
    found = [one for one in requirements_of("train") if one.name == "torch"]
    return Requirement(f"torch{found[0].specifier}" if found else "torch")


def _on_bus(machine: Machine) -> int:
    """Display and compute devices of NVIDIA on the PCI bus."""
    count = 0
    for folder in (machine.root / "sys/bus/pci/devices").glob("*"):
        name = str(folder.relative_to(machine.root))
        is_display = machine.read(f"{name}/class").startswith("0x03")
        count += is_display and machine.read(f"{name}/vendor").strip() == _NVIDIA
    return count


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
