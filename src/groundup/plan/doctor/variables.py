"""Environment variables that make training slow, hang, or something else than it seems."""

import os
from collections.abc import Iterator
from pathlib import Path

from groundup.core.errors import MachineError
from groundup.launch.env import rank_from_env
from groundup.plan.doctor.finding import Finding, Machine
from groundup.plan.doctor.optional_parts import requirements_of
from groundup.plan.doctor.processor import allowed_cores
from groundup.plan.doctor.system_limits import has_infiniband

_ON = ("1", "true", "TRUE", "True")
_HURTS = {
    "NCCL_P2P_DISABLE": (_ON, "GPUs exchange data through the host's memory, several times as slowly."),
    "NCCL_SHM_DISABLE": (_ON, "GPUs without peer access exchange data through the network stack."),
    "NCCL_DEBUG": (("INFO", "TRACE"), "Every rank writes hundreds of lines."),
    "NCCL_BLOCKING_WAIT": (_ON, "Each collective holds the host up."),
    "TORCH_NCCL_BLOCKING_WAIT": (_ON, "Each collective holds the host up."),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (("0",), "After a failure of one rank the others hang."),
    "TORCH_DISTRIBUTED_DEBUG": (("DETAIL",), "Each collective is checked by another one."),
    "CUDA_LAUNCH_BLOCKING": (_ON, "The host waits for each kernel."),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (_ON, "Each tensor is allocated by the driver."),
    "TORCHDYNAMO_DISABLE": (_ON, "compile: true has no effect."),
    "TORCH_COMPILE_DISABLE": (_ON, "compile: true has no effect."),
    "OMP_WAIT_POLICY": (("active", "ACTIVE"), "Waiting threads burn the cores that others need."),
}
"""Variable -> values that hurt, and why."""

_FORCED = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def variables(machine: Machine) -> Iterator[Finding]:
    """Threads, leftovers of experiments, interfaces that are not there, modules in the wrong place."""
    found = [*_threads(machine), *_leftovers(machine), *_interfaces(machine), *_ranks(machine)]
    found += _shadows(machine)
    yield from found or [Finding("environment", "ok", "no variable that hurts")]


def _threads(machine: Machine) -> Iterator[Finding]:
    text, cores = machine.environment.get("OMP_NUM_THREADS", ""), allowed_cores()
    fair = max(1, cores // machine.num_ranks)
    threads = int(text) if text.isdecimal() else 0
    if machine.num_ranks > 1 and not threads and fair < cores:
        why = f"{machine.num_ranks} ranks would each start {cores} threads on {cores} cores."
        yield Finding(
            "environment", "warning", "OMP_NUM_THREADS is not set", why, f"export OMP_NUM_THREADS={fair}"
        )
    elif threads > cores:
        why = f"There are {cores} cores: threads wait for each other."
        yield Finding(
            "environment", "warning", f"OMP_NUM_THREADS={text}", why, f"export OMP_NUM_THREADS={fair}"
        )


def _leftovers(machine: Machine) -> Iterator[Finding]:
    given = machine.environment
    for name, (values, why) in _HURTS.items():
        if given.get(name) in values:
            yield Finding("environment", "warning", f"{name}={given[name]}", why, f"unset {name}")
    for name in _FORCED:
        if name in given:
            why = "NCCL chooses by itself, by size and topology."
            yield Finding("environment", "warning", f"{name}={given[name]}", why, f"unset {name}")
    if given.get("NCCL_IB_DISABLE") in _ON and has_infiniband(machine):
        why = "There is InfiniBand, and NCCL goes over Ethernet."
        yield Finding("environment", "warning", "NCCL_IB_DISABLE=1", why, "unset NCCL_IB_DISABLE")
    if machine.driver.gpus and given.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        why = "It hides all GPUs."
        yield Finding(
            "environment", "warning", "CUDA_VISIBLE_DEVICES is empty", why, "unset CUDA_VISIBLE_DEVICES"
        )


def _interfaces(machine: Machine) -> Iterator[Finding]:
    there = sorted(path.name for path in (machine.root / "sys/class/net").glob("*"))
    for name in _INTERFACES:
        value = machine.environment.get(name, "")
        wanted = [one for one in value.lstrip("^=").split(",") if one]
        absent = [one for one in wanted if not any(other.startswith(one) for other in there)]
        if absent and there and not value.startswith("^"):
            why = f"There is no such interface (there are {', '.join(there)}): ranks do not find each other."
            yield Finding(
                "environment", "problem", f"{name}={value}", why, f"unset {name}, or name one of these"
            )


def _ranks(machine: Machine) -> Iterator[Finding]:
    try:
        rank_from_env(machine.environment)
    except MachineError as error:
        yield Finding("environment", "problem", error.what, "Training would refuse to start.", error.fix)


def _shadows(machine: Machine) -> Iterator[Finding]:
    """Modules that PYTHONPATH puts before those that are installed."""
    names = {one.name.replace("-", "_").lower() for extra in ("", "train") for one in requirements_of(extra)}
    for folder in machine.environment.get("PYTHONPATH", "").split(os.pathsep):
        own = [name for name in sorted({*names, "groundup", "yaml"}) if folder and _has(Path(folder), name)]
        if own:
            why = "What lies there is imported in place of what is installed."
            yield Finding(
                "environment",
                "warning",
                f"PYTHONPATH has {', '.join(own)} in {folder}",
                why,
                "unset PYTHONPATH",
            )


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
