"""What documents promise: their code blocks, and a shell to run them in."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.forked import programs

ROOT = Path(__file__).resolve().parents[1]


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of a language in a document, such as "README.md", in order."""
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(document: str) -> list[str]:
    """The lines of its blocks of bash."""
    return [line for block in blocks(document, "bash") for line in block.splitlines()]


def shell(command: str, folder: Path, *, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user would, with the tests' ``groundup`` and ``python`` first on the PATH.

    Args:
        command: For bash.
        folder: Where.
        fresh: Each process imports what it needs, as a user's does; else they are forks that have it.
    """
    real = Path(sys.executable).parent
    first = (real,) if fresh else (programs(), real)
    path = os.pathsep.join([*map(str, first), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def run(command: str, folder: Path, *, fresh: bool = False) -> str:
    """Runs a command that must succeed; returns what it printed."""
    done = shell(command, folder, fresh=fresh)
    assert done.returncode == 0, (command, done.stderr[-3000:])
    return done.stdout


def sessions(document: str) -> list[tuple[list[str], str]]:
    """The commands of each block of bash that a block of text follows at once, and what that shows."""
    text = (ROOT / document).read_text()
    found = re.findall(
        r"^```bash\n((?:(?!^```).)*)^```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    return [(lines.splitlines(), shown) for lines, shown in found]


def masked(text: str) -> str:
    """A text without what depends on the machine and the hour: rates, durations, times of day."""
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "CLOCK", text)
    text = re.sub(r"\b\d[\d.,]*\s?[kMGT]?\s?\w*/s\b", "RATE", text)
    return re.sub(r"\b(\d+h)?(\d+m)?\d+(\.\d+)?\s?s\b", "TIME", text)


def is_shown(shown: str, printed: str) -> bool:
    """Whether all that was printed is shown; "..." is any text, and lines may be broken elsewhere."""
    pattern = re.escape(" ".join(masked(shown).split())).replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, " ".join(masked(printed).split())) is not None


def require_sessions(document: str, folder: Path) -> int:
    """Runs the commands of ``sessions`` and compares what they print; returns the number of sessions.

    A refusal that is shown ("groundup: ...") is the last command's, which must end with exit code 1.
    """
    found = sessions(document)
    for lines, shown in found:
        *before, last = lines
        printed = "".join(run(line, folder) for line in before)
        done = shell(last, folder)
        refused = "\ngroundup: " in f"\n{shown}"
        assert done.returncode == (1 if refused else 0), (last, done.stderr[-3000:])
        printed += done.stdout
        if refused:
            printed += f"\n{done.stderr}"[f"\n{done.stderr}".rindex("\ngroundup: ") :]
        assert is_shown(shown, printed), (lines, printed)
    return len(found)


def require_shown(document: str, folder: Path) -> None:
    """Runs the commands of its blocks of console: each prints the lines that follow, "..." being any text."""
    for block in blocks(document, "console"):
        command, *shown = block.removeprefix("$ ").splitlines()
        out = run(command, folder).splitlines()
        assert len(out) == len(shown), out
        for line, expected in zip(out, shown, strict=True):
            pattern = re.escape(re.sub(" +", " ", expected)).replace(r"\.\.\.", ".*")
            assert re.fullmatch(pattern, re.sub(" +", " ", line)), (line, expected)
