"""What documents promise: their code blocks, and a shell to run them in."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of a language in a document, such as "README.md", in order."""
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(document: str) -> list[str]:
    """The lines of its blocks of bash."""
    return [line for block in blocks(document, "bash") for line in block.splitlines()]


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user would, with the tests' interpreter first on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def run(command: str, folder: Path) -> str:
    """Runs a command that must succeed; returns what it printed."""
    done = shell(command, folder)
    assert done.returncode == 0, (command, done.stderr[-3000:])
    return done.stdout


def require_shown(document: str, folder: Path) -> None:
    """Runs the commands of its blocks of console: each prints the lines that follow, "..." being any text."""
    for block in blocks(document, "console"):
        command, *shown = block.removeprefix("$ ").splitlines()
        out = run(command, folder).splitlines()
        assert len(out) == len(shown), out
        for line, expected in zip(out, shown, strict=True):
            pattern = re.escape(re.sub(" +", " ", expected)).replace(r"\.\.\.", ".*")
            assert re.fullmatch(pattern, re.sub(" +", " ", line)), (line, expected)
