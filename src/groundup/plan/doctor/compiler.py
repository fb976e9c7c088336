"""Whether torch.compile works here; if not, what its toolchain lacks and how to mend that."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from groundup.core.errors import MachineError
from groundup.plan.doctor.finding import Finding, Machine

_WHY = "Training with compile: true goes on without, more slowly."
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_CAUSES = (
    (
        r"Python\.h: No such file",
        "Python's headers are missing",
        f"Debian, Ubuntu: apt install python{_PYTHON}-dev; Fedora, RHEL: dnf install python{_PYTHON}-devel",
    ),
    (
        r"No working C\+\+ compiler|InvalidCxxCompiler|Failed to find C compiler"
        r"|No such file or directory: '(g\+\+|gcc|cc)'",
        "there is no C and C++ compiler",
        "Debian, Ubuntu: apt install g++; Fedora, RHEL: dnf install gcc-c++; conda: conda install gxx",
    ),
    (
        r"cannot find -lgomp|omp\.h: No such file|omp\.h' file not found",
        "the compiler has no OpenMP",
        "Debian, Ubuntu: apt install g++ (clang: libomp-dev)",
    ),
    (
        r"failed to map segment|Operation not permitted",
        "the temporary folder is mounted noexec",
        "export TMPDIR=$HOME/tmp (and mkdir it)",
    ),
    (r"No space left on device", "the temporary folder is full", "Free some space, or: export TMPDIR=FOLDER"),
    (
        r"(working|find) [Tt]riton|No module named 'triton'",
        "Triton is missing, which compiles for GPUs",
        "pip install triton, or reinstall torch with its dependencies",
    ),
    (
        r"(crypt|stdio|limits)\.h: No such file",
        "the C library's headers are missing",
        "Debian, Ubuntu: apt install libc6-dev",
    ),
)
"""Pattern of what was said -> what is missing, and the fix."""

_DRIVER_FOLDERS = (
    *("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib/wsl/lib"),
    *("usr/local/nvidia/lib64", "usr/lib64-nvidia", "usr/local/cuda/compat", ".singularity.d/libs"),
)
_STUBS = "usr/local/cuda*/**/stubs"


def compiler(machine: Machine) -> Iterator[Finding]:
    """Compiles a small function by torch.compile for the device that a run would take."""
    facts = machine.torch.facts()
    if "device" not in facts:
        return
    try:
        found = machine.torch.compiled()
    except MachineError as error:
        fix = "export TORCHINDUCTOR_COMPILE_THREADS=1, and try again"
        yield Finding("compiler", "warning", f"torch.compile does not work: {error.what}", _WHY, fix)
        return
    if "error" not in found:
        yield Finding(
            "compiler",
            "ok",
            f"torch.compile works on {found['device']} ({found['seconds']:.1f} s from nothing)",
        )
        return
    what, fix = explain(found["error"], machine.root)
    yield Finding("compiler", "warning", f"torch.compile does not work: {what}", _WHY, fix)


def explain(said: str, root: Path = Path("/")) -> tuple[str, str]:
    """Returns what a toolchain lacks by all that it said, and how to mend that.

    Args:
        said: Traceback and output of the compiler.
        root: Where /usr lies.
    """
    if re.search(r"cannot find -lcuda\b|libcuda\.so cannot found|libcuda\.so: cannot open", said):
        return "the linker does not find libcuda (cannot find -lcuda)", _fix_of_libcuda(root)
    for pattern, what, fix in _CAUSES:
        if re.search(pattern, said):
            return what, fix
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|Error:", line)]
    return (errors or lines or ["no message"])[-1][
        :300
    ], "With compile: false, the default, nothing is compiled."


def _fix_of_libcuda(root: Path) -> str:
    """Says how the linker finds the driver's library, by where it lies."""
    folders = [root / folder for folder in _DRIVER_FOLDERS]
    for folder in folders:
        if (folder / "libcuda.so").exists():
            return f"export LIBRARY_PATH={folder}:$LIBRARY_PATH"
    for folder in folders:
        if (folder / "libcuda.so.1").exists():
            return (
                f"ln -s {folder}/libcuda.so.1 {folder}/libcuda.so (as root); or without: mkdir -p ~/lib &&"
                f" ln -s {folder}/libcuda.so.1 ~/lib/libcuda.so && export LIBRARY_PATH=~/lib:$LIBRARY_PATH"
            )
    for folder in sorted(root.glob(_STUBS)):
        if (folder / "libcuda.so").exists():
            return f"export LIBRARY_PATH={folder}:$LIBRARY_PATH (the toolkit's stub, for linking only)"
    return (
        "Find the driver's library with `ldconfig -p | grep libcuda`; then ln -s FOLDER/libcuda.so.1"
        " FOLDER/libcuda.so, or export LIBRARY_PATH=FOLDER. In a container: start it with --gpus all."
    )
