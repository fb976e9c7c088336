"""Commands of groundup, run in a folder as a user would run them, with a log of each."""

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from groundup.core.errors import GroundupError

_SHOWN_LINES = 6
_PROGRAM = "groundup: "


class Commands:
    """Runs commands of groundup in a folder.

    Args:
        folder: In which they run, and where NAME.log is written of each.

    Attributes:
        typed: What was run, as it would be typed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.typed: list[str] = []

    def run(self, *words: str) -> str:
        """Runs a command to its end; returns what it printed.

        Raises:
            GroundupError: It failed.
        """
        with self.started(*words) as (process, log):
            printed, _ = process.communicate()
        if process.returncode:
            raise GroundupError(last_words(log), where=log, fix=f"Try: cd {self._folder}; {self.typed[-1]}")
        return printed

    @contextlib.contextmanager
    def started(self, *words: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
        """Yields the running command with its log; kills it where it is left running."""
        self.typed.append(shlex.join(("groundup", *words)))
        log = self._log_of(words)
        with log.open("w", encoding="utf-8") as stderr:
            process = subprocess.Popen(  # noqa: S603  # this same program
                [sys.executable, "-m", "groundup", *words],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert process.stdout is not None, "it is piped"
        try:
            yield process, log
        finally:
            process.kill()  # nothing where it has ended
            process.wait()
            process.stdout.close()

    def _log_of(self, words: tuple[str, ...]) -> Path:
        name = "-".join(word for word in words[:2] if word.isalpha())
        taken = len(list(self._folder.glob(f"{name}*.log")))
        return self._folder / (f"{name}-{taken + 1}.log" if taken else f"{name}.log")


def last_words(log: Path) -> str:
    """Returns the error that a command ended with, or its last lines where it crashed."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [index for index, line in enumerate(lines) if line.startswith(_PROGRAM)]
    if errors:
        return "\n".join(lines[errors[-1] :]).removeprefix(_PROGRAM)
    return "\n".join(lines[-_SHOWN_LINES:]) or "it said nothing"
