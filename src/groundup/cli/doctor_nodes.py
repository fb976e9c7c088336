"""``groundup doctor --nodes``: the ranks of a run, and the links between them."""

import dataclasses
from typing import TYPE_CHECKING, Literal

from groundup.cli.findings import print_finding, print_summary, to_json
from groundup.core.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from groundup.plan.doctor.finding import Finding
    from groundup.plan.doctor.rank_links import Links

_SECONDS = 60.0
"""Without progress, until the rank that hangs is named."""


def check_nodes(*, ranks: int, device: Literal["auto", "cpu", "cuda"], quick: bool, as_json: bool) -> None:
    """Measures between the ranks that there are, or that it starts; rank 0 prints what they say.

    Args:
        ranks: To be started where no launcher has; 0 for one per GPU, or two.
        device: Of each.
        quick: Leave out large sizes.
        as_json: Print one JSON object.

    Raises:
        MachineError: On rank 0, where there is a problem: so a launcher ends with exit code 1.
    """
    from groundup.cli.over_ranks import joined, start_ranks
    from groundup.core.log import logger
    from groundup.launch.heartbeat import HeartbeatWriter
    from groundup.launch.watchdog import WatchdogConfig, watchdog
    from groundup.parallel.layout import Layout
    from groundup.plan.doctor.gpu_driver import ask_driver

    wanted = ranks or (len(ask_driver().gpus) if device != "cpu" else 0)
    start_ranks(Layout(dp=max(2, wanted)))
    from groundup.plan.doctor.compare_ranks import compare_ranks
    from groundup.plan.doctor.rank_links import measure

    heartbeat = HeartbeatWriter.from_env()
    limits = WatchdogConfig(seconds=_SECONDS, long_phase_seconds=_SECONDS)
    with joined(Layout(), device) as mesh, watchdog(limits, heartbeat):
        if mesh.size == 1:
            raise ConfigError("one rank has no links", where="--nodes", fix="Start two or more.")
        steps = iter(range(1, 1000))

        def tell(what: str) -> None:
            heartbeat.record(next(steps), what)
            logger.info("measuring: %s", what)

        links = measure(mesh, quick=quick, on_progress=tell)
    findings = list(compare_ranks(links))
    if mesh.is_first:
        _print(links, findings, as_json=as_json)
        problems = sum(one.status == "problem" for one in findings)
        if problems:
            what = "a problem" if problems == 1 else f"{problems} problems"
            raise MachineError(f"there is {what} between the ranks, as listed", where="doctor --nodes")


def _print(links: "Links", findings: "list[Finding]", *, as_json: bool) -> None:
    if as_json:
        print(to_json(findings, links=dataclasses.asdict(links)))
        return
    for finding in findings:
        print_finding(finding)
    print_summary(findings)
