"""Decides which checkpoints of a run stay. Only sound ones count, and only sound ones are removed."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from groundup.checkpoint.native.folder import (
    MARKER,
    find_damage,
    find_missing,
    list_checkpoints,
    remove_checkpoint,
    step_of,
)
from groundup.core.log import logger


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keep:
    """Which checkpoints stay.

    Attributes:
        last: How many of the newest stay.
        every: Those of steps that this divides stay too; 0 for none.
        back: Those of fewer steps before whatever step comes next stay, and the newest of as many or more;
            0 for none.
    """

    last: int
    every: int = 0
    back: int = 0

    def sort(self, folders: list[Path], find_damage: Callable[[Path], str | None]) -> "Sorted":
        """Decides which of a run's checkpoints stay.

        Args:
            folders: Of the run, the oldest first.
            find_damage: Tells why one cannot be used; called only where it decides something.
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
            elif damage := find_damage(folder):
                found.damaged[folder] = damage
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
    """Removes what a run need not keep after each save; reads each checkpoint once at most."""

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
        found = self._keep.sort([folder for folder in folders if folder not in later], self._find_damage)
        for folder in (*found.superfluous, *self._dir.glob(".step_*.tmp")):
            remove_checkpoint(folder)
        for folder, damage in found.damaged.items():
            self._leave(folder, f"damaged ({damage})")
        for folder in later:
            self._leave(folder, f"of a later step than {saved.name}")
        return found.superfluous

    def _find_damage(self, folder: Path) -> str | None:
        if folder in self._damaged:
            return self._damaged[folder]
        marker = (folder / MARKER).read_bytes() if (folder / MARKER).is_file() else b""
        damage = find_missing(folder) if self._sound.get(folder) == marker else find_damage(folder)
        if damage:
            self._damaged[folder] = damage
        else:
            self._sound[folder] = marker
        return damage

    def _leave(self, folder: Path, why: str) -> None:
        if folder not in self._left:
            logger.warning("%s is %s: it does not count as kept, and is left for you to remove", folder, why)
            self._left.add(folder)
