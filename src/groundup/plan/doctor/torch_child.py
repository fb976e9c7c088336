"""PyTorch in a process of its own: a crash at import or a compiler that hangs ends that process alone."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from groundup.core.errors import MachineError

FACTS, COMPILED = "facts.json", "compiled.json"
_IMPORT_SECONDS, _COMPILE_SECONDS = 120.0, 240.0


class TorchChild:
    """A process that writes what PyTorch says of itself and the devices, then tries to compile.

    Args:
        process: That runs ``torch_facts``.
        folder: Which it writes to.
        log: Its output.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, log: IO[bytes]) -> None:
        self._process = process
        self._folder = folder
        self._log = log
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self._began

    def facts(self) -> dict[str, Any]:
        """What PyTorch says of itself, as ``torch_facts.facts`` returns it.

        Raises:
            MachineError: The process died or takes too long.
        """
        return self._wait_for(FACTS, _IMPORT_SECONDS, "importing PyTorch")

    def compiled(self) -> dict[str, Any]:
        """What came of compiling: ``{"seconds": ...}``, or ``{"error": ...}`` with all that was said.

        Raises:
            MachineError: The process died or takes too long.
        """
        return self._wait_for(COMPILED, _COMPILE_SECONDS, "compiling")

    def _wait_for(self, name: str, seconds: float, doing: str) -> dict[str, Any]:
        path = self._folder / name
        while not path.exists():
            code = self._process.poll()
            if code is not None and not path.exists():
                raise MachineError(f"{doing} ended the process ({_end(code)}): {self._last_lines()}")
            if self.seconds > seconds:
                raise MachineError(f"{doing} takes longer than {seconds:g} seconds")
            time.sleep(0.02)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def _last_lines(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return " | ".join([line.strip() for line in lines if line.strip()][-3:])


@contextlib.contextmanager
def torch_child(*, compiles: bool = True, python: str = sys.executable) -> Iterator[TorchChild]:
    """Starts the process, and ends it when left.

    Args:
        compiles: Whether it tries to compile; into an empty cache, so that an earlier success does not count.
        python: Which interpreter.
    """
    with tempfile.TemporaryDirectory(prefix="groundup-doctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{name}/inductor", "TRITON_CACHE_DIR": f"{name}/triton"}
        words = [python, "-m", "groundup.plan.doctor.torch_facts", name, "compile" if compiles else ""]
        with (folder / "log").open("w+b") as log:
            process = subprocess.Popen(  # noqa: S603  # our own module
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **caches},
                start_new_session=True,
            )  # fmt: skip
            try:
                yield TorchChild(process, folder, log)
            finally:
                _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and the compilers that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
