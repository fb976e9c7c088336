"""``groundup doctor``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from groundup.cli.findings import print_finding, print_summary, to_json
from groundup.cli.options import Device, Switch

if TYPE_CHECKING:
    from groundup.plan.doctor.finding import Finding

_DEFAULT_RUN_DIR = Path("runs")


def doctor(
    *,
    run_dir: Path = _DEFAULT_RUN_DIR,
    nodes: Switch = False,
    ranks: int = 0,
    device: Device = "auto",
    quick: Switch = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Check whether this machine can train, and say what to do about what is wrong.

    Looks at processor, memory, GPUs and their driver, torch and its build, NCCL, number formats, the compiler
    of torch.compile, shared memory, disks, ports, clock, limits, environment variables, and which optional
    parts are installed. The exit code is 1 where something will not work; a warning leaves it at 0.

    With --nodes, several ranks measure the links between them: all-reduce by size, each pair of neighbours,
    speed of each rank, clocks, versions; and propose the interface. Under torchrun or srun these are its
    ranks, otherwise ranks of this machine are started.

    For example:

        groundup doctor

        groundup doctor --quick --json

        groundup doctor --nodes --ranks 2

        torchrun --nnodes 2 --nproc-per-node 8 ... -m groundup doctor --nodes

    Args:
        run_dir: Where runs will lie.
        nodes: Measure between ranks instead.
        ranks: Ranks to start, with --nodes and no launcher; 0 for one per GPU, or two.
        quick: Leave out what takes long: the compiler, and large sizes.
        as_json: Print one JSON object instead of lines.
    """
    if nodes:
        from groundup.cli.doctor_nodes import check_nodes

        check_nodes(ranks=ranks, device=device, quick=quick, as_json=as_json)
        return
    findings = _check_machine(run_dir, quick=quick, as_json=as_json)
    if any(one.status == "problem" for one in findings):
        sys.exit(1)


def _check_machine(run_dir: Path, *, quick: bool, as_json: bool) -> "list[Finding]":
    from groundup.core.live_line import LiveLine
    from groundup.plan.doctor.diagnose import CHECKS, SLOW, diagnose
    from groundup.plan.doctor.finding import Machine
    from groundup.plan.doctor.torch_child import torch_child

    findings: list[Finding] = []
    with (
        torch_child(compiles=not quick) as child,
        LiveLine(lambda: _waiting_for(len(findings), child.seconds)),
    ):
        for finding in diagnose(Machine.this(run_dir, child), CHECKS if quick else (*CHECKS, *SLOW)):
            findings.append(finding)
            if not as_json:
                print_finding(finding)
    if as_json:
        print(to_json(findings))
    else:
        print_summary(findings)
    return findings


def _waiting_for(done: int, seconds: float) -> str:
    return f"{done} findings; waiting for torch to be imported and to compile, {seconds:.0f} s so far"
