"""All checks, one after the other; one that fails hides no other."""

from collections.abc import Callable, Iterable, Iterator

from groundup.plan.doctor import accelerators, local_network, storage
from groundup.plan.doctor.compiler import compiler
from groundup.plan.doctor.finding import Finding, Machine
from groundup.plan.doctor.optional_parts import installation, optional_parts
from groundup.plan.doctor.processor import memory, processor
from groundup.plan.doctor.system_limits import limits
from groundup.plan.doctor.variables import variables

Check = Callable[[Machine], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    processor,
    memory,
    accelerators.gpus,
    installation,
    storage.shared_memory,
    storage.run_folder,
    storage.temporary_folder,
    local_network.ports,
    local_network.loopback,
    local_network.clock,
    limits,
    variables,
    optional_parts,
    accelerators.torch,  # from here on, PyTorch's process is waited for
    accelerators.driver,
    accelerators.nccl,
    accelerators.precision,
)
SLOW: tuple[Check, ...] = (compiler,)
"""What takes more than a few seconds."""


def diagnose(machine: Machine, checks: Iterable[Check] = (*CHECKS, *SLOW)) -> Iterator[Finding]:
    """Yields what the checks find, as soon as each has ended."""
    for check in checks:
        try:
            yield from list(check(machine))
        except Exception as error:  # a system of which we did not think must not hide what the others find
            name = check.__name__.replace("_", " ")
            what = f"this check failed: {type(error).__name__}: {error}"
            yield Finding(name, "warning", what, "What it looks at is not known.", "The other checks stand.")
