"""What the doctor has found, as lines or as JSON."""

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from groundup.plan.doctor.finding import Finding


def to_json(findings: "Iterable[Finding]", **more: object) -> str:
    """Findings, and what else was measured, as one JSON object."""
    return json.dumps({"findings": [dataclasses.asdict(one) for one in findings], **more}, indent=2)


def print_finding(finding: "Finding") -> None:
    """Prints what a check found; where something should be done, why and what."""
    print(f"{finding.status:<8} {finding.check}: {finding.found}", flush=True)
    for name, text in (("why", finding.why), ("do", finding.fix)):
        if text and (finding.status != "ok" or name == "do"):
            print(f"{'':<8} {name}: {text}", flush=True)


def print_summary(findings: "Iterable[Finding]") -> None:
    """Prints how many of each kind there are."""
    counts = {"ok": 0, "warning": 0, "problem": 0}
    for finding in findings:
        counts[finding.status] += 1
    others = [f"{counts[name]} {name}{'s' * (counts[name] != 1)}" for name in ("warning", "problem")]
    print(", ".join([f"{counts['ok']} ok", *others]))
