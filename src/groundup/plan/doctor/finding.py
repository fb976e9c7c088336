"""What the checks look at, and what a check says."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from groundup.plan.doctor.gpu_driver import GpuReport, ask_driver
from groundup.plan.doctor.torch_child import TorchChild

Status = Literal["ok", "warning", "problem"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check says.

    Attributes:
        check: Its name.
        status: Whether something should be done.
        found: What is there.
        why: Why it matters, where something should be done.
        fix: What to type or change.
    """

    check: str
    status: Status
    found: str
    why: str = ""
    fix: str = ""


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine to be checked.

    Attributes:
        run_dir: Folder of runs.
        environment: Variables.
        driver: GPUs and their driver.
        torch: PyTorch in a process of its own.
        root: Where /proc, /sys and /dev lie.
        num_ranks: Ranks that a run would have here.
    """

    run_dir: Path
    environment: Mapping[str, str]
    driver: GpuReport
    torch: TorchChild
    root: Path = Path("/")
    num_ranks: int = 1

    @classmethod
    def this(cls, run_dir: Path, torch: TorchChild) -> "Machine":
        """The machine that we are on."""
        driver = ask_driver()
        launched = os.environ.get("LOCAL_WORLD_SIZE", "")
        ranks = int(launched) if launched.isdecimal() else max(1, len(driver.gpus))
        return cls(run_dir, os.environ, driver, torch, num_ranks=ranks)

    def read(self, path: str) -> str:
        """The text of a file of the system; empty where there is none."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""

    def cgroup(self, name: str, *, old: str) -> Iterator[str]:
        """Yields a limit of this process's control group and of those above it.

        Args:
            name: File of version 2, such as "memory.max".
            old: Controller and file of version 1, such as "memory/memory.limit_in_bytes".
        """
        controller, _, file = old.partition("/")
        for line in self.read("proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                folder, wanted = Path("sys/fs/cgroup"), name
            elif controller in controllers.split(","):
                folder, wanted = Path("sys/fs/cgroup") / controller, file
            else:
                continue
            own = Path(path.lstrip("/"))
            for group in (own, *own.parents):
                if text := self.read(str(folder / group / wanted)).strip():
                    yield text
