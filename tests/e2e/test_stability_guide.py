"""The commands of docs/guides/stability.md run as they stand, and print what is shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from groundup.core.config import to_yaml
from tests.runs import make_config, make_data

GUIDE = (Path(__file__).resolve().parents[2] / "docs/guides/stability.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With the config and the data that the guide takes for granted."""
    folder = tmp_path_factory.mktemp("guide")
    data = make_data(folder)
    config = make_config(data, folder / "unnamed", "num_steps=20", "checkpoint.interval=5", "log.interval=10")
    (folder / "run.yaml").write_text(to_yaml(config))
    return folder


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def run(command, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_every_command_runs(folder):
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    assert len(commands) == 8
    for command in commands:
        done = run(command, folder)
        assert done.returncode == 0, (command, done.stderr[-3000:])


@pytest.mark.slow
def test_what_is_shown_is_what_is_printed(folder):
    (block,) = blocks("console")
    for session in block.split("$ ")[1:]:
        command, *shown = session.splitlines()
        done = run(command, folder)
        assert done.returncode == (1 if "train" in command else 0), done.stderr[-3000:]
        pattern = ".*".join(re.escape(line).replace(r"\.\.\.", ".*") for line in shown)
        assert re.search(pattern, done.stdout + done.stderr, re.DOTALL), (
            shown,
            done.stdout,
            done.stderr[-2000:],
        )
