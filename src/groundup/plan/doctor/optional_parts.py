"""The installation: Python, groundup itself and its extras, as the metadata of the package names them."""

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from groundup import __version__
from groundup.plan.doctor.finding import Finding, Machine

_OF_DEVELOPERS = ("dev", "bench", "docs")
_OLDEST_PYTHON = (3, 11)


def installation(machine: Machine) -> Iterator[Finding]:
    """Versions of groundup and Python, and the packages that everything needs."""
    here = Path(__file__).parents[2]
    found = f"groundup {__version__} in {here}, Python {platform.python_version()} ({sys.executable})"
    if sys.version_info < _OLDEST_PYTHON or sys.maxsize < 2**32:
        wanted = ".".join(map(str, _OLDEST_PYTHON))
        why = f"groundup is made for 64-bit Python {wanted} and newer."
        yield Finding(
            "installation", "problem", found, why, f"Install Python {wanted}, and groundup into it."
        )
        return
    faults = [fault for one in requirements_of("") if (fault := _fault(one))]
    if faults:
        why = "All commands need these."
        yield Finding("installation", "problem", f"{found}; {', '.join(faults)}", why, "pip install groundup")
    else:
        yield Finding("installation", "ok", found)


def optional_parts(machine: Machine) -> Iterator[Finding]:
    """Each extra: there, not installed, incomplete, or of a version that does not fit."""
    names = _metadata().get_all("Provides-Extra") or []
    for extra in sorted(set(names) - {*_OF_DEVELOPERS}):
        wanted = requirements_of(extra)
        check, line = f"groundup[{extra}]", f"pip install 'groundup[{extra}]'"
        faults = {one.name: fault for one in wanted if (fault := _fault(one))}
        if not faults:
            yield Finding(check, "ok", ", ".join(f"{one.name} {_version(one.name)}" for one in wanted))
        elif all(fault.endswith("missing") for fault in faults.values()):
            fix = f"Where it is wanted: {line}"
            is_partial = len(faults) < len(wanted)
            what = ", ".join(faults.values()) if is_partial else "not installed"
            yield Finding(check, "ok", what, "", fix)
        else:
            why = "groundup is made for other versions."
            yield Finding(check, "problem", ", ".join(faults.values()), why, f"{line} --upgrade")


def requirements_of(extra: str) -> list[Requirement]:
    """Requirements of an extra on this system, those of extras within it too; of groundup itself for ""."""
    found: dict[str, Requirement] = {}
    for text in _metadata().get_all("Requires-Dist") or []:
        one = Requirement(text)
        is_of_extra = one.marker is not None and "extra" in str(one.marker)
        if is_of_extra != bool(extra) or (one.marker and not one.marker.evaluate({"extra": extra})):
            continue
        if one.name == "groundup":
            found.update((inner.name, inner) for name in one.extras for inner in requirements_of(name))
        else:
            found[one.name] = one
    return list(found.values())


def _metadata() -> importlib.metadata.PackageMetadata:
    return importlib.metadata.metadata("groundup")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _fault(wanted: Requirement) -> str:
    """What is wrong with a package; empty where nothing is."""
    version = _version(wanted.name)
    if not version:
        return f"{wanted.name} missing"
    if not wanted.specifier.contains(version, prereleases=True):
        return f"{wanted.name} {version}, and {wanted.specifier} is needed"
    return ""
