"""Which checkpoints of a run stay. Only sound ones count, and only sound ones are removed."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from groundup.checkpoint.native.store import MARKER, list_checkpoints, remove, step_of, verify, verify_sizes
from groundup.core.log import logger


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keep:
    """The rule.

    Attributes:
        last: How many of the newest stay.
        every: Those of steps that this divides stay too; 0 for none.
        back: Those of fewer steps before whatever step comes next stay, and the newest of as many or more;
            0 for none.
    """

    last: int
    every: int = 0
    back: int = 0

    def sort(self, folders: list[Path], damage: Callable[[Path], str]) -> "Sorted":
        """Which of a run's checkpoints stay.

        Args:
            folders: Of the run, the oldest first.
            damage: Why one cannot be used, empty where it can; asked only where it decides something.
        """
        assert self.last >= 1, "the config refuses less"
        found = Sorted()
        counted: list[int] = []
        for folder in reversed(folders):
            step = step_of(folder)
            is_of_every = bool(self.every) and step % self.every == 0
            enough = len(counted) >= self.last and counted[-1] + self.back <= counted[0] + 1
            if enough and is_of_every:
                found.kept.append(folder)
            elif reason := damage(folder):
                found.damaged[folder] = reason
            elif enough:
                found.superfluous.append(folder)
            else:
                counted.append(step)
                found.kept.append(folder)
        return found


@dataclasses.dataclass(frozen=True)
class Sorted:
    """Checkpoints, the newest first: those that stay, those that may go, and the damaged with the reason."""

    kept: list[Path] = dataclasses.field(default_factory=list)
    superfluous: list[Path] = dataclasses.field(default_factory=list)
    damaged: dict[Path, str] = dataclasses.field(default_factory=dict)


class Pruning:
    """Removes what a run need not keep after each save; reads each checkpoint once at most.

    Args:
        checkpoints_dir: Of the run.
        keep: The rule.
    """

    def __init__(self, checkpoints_dir: Path, keep: Keep) -> None:
        self._dir = checkpoints_dir
        self._keep = keep
        self._sound: dict[Path, bytes] = {}  # with the marker, which is another when the checkpoint is
        self._damaged: dict[Path, str] = {}
        self._left: set[Path] = set()

    def after_saving(self, saved: Path) -> list[Path]:
        """Removes older checkpoints, and what unfinished saves left behind; returns those that are gone.

        Damaged checkpoints and those of later steps than the one just saved are left, and named in the log.
        """
        self._sound[saved] = (saved / MARKER).read_bytes()
        self._damaged.pop(saved, None)
        folders = list_checkpoints(self._dir)
        later = [folder for folder in folders if step_of(folder) > step_of(saved)]
        found = self._keep.sort([folder for folder in folders if folder not in later], self._damage)
        for folder in found.superfluous:
            remove(folder)
        for leftover in self._dir.glob(".step_*.tmp"):
            remove(leftover)
        for folder, reason in found.damaged.items():
            self._leave(folder, f"damaged ({reason})")
        for folder in later:
            self._leave(folder, f"of a later step than {saved.name}")
        return found.superfluous

    def _damage(self, folder: Path) -> str:
        if folder in self._damaged:
            return self._damaged[folder]
        marker = (folder / MARKER).read_bytes() if (folder / MARKER).is_file() else b""
        reason = verify_sizes(folder) if self._sound.get(folder) == marker else verify(folder)
        if reason:
            self._damaged[folder] = reason
        else:
            self._sound[folder] = marker
        return reason

    def _leave(self, folder: Path, why: str) -> None:
        if folder not in self._left:
            logger.warning("%s is %s: it does not count as kept, and is left for you to remove", folder, why)
            self._left.add(folder)
