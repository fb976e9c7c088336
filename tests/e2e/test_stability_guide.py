"""The commands of docs/guides/stability.md run as they stand, and print what is shown."""

import re
from pathlib import Path

import pytest

from tests.guides import blocks, commands, run, shell
from tests.runs import write_run

GUIDE = "docs/guides/stability.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With the config and the data that the guide takes for granted."""
    folder = tmp_path_factory.mktemp("guide")
    write_run(folder, "num_steps=20", "checkpoint.interval=5", "log.interval=10")
    return folder


@pytest.mark.slow
def test_every_command_runs(folder):
    lines = commands(GUIDE)
    assert len(lines) == 8
    for line in lines:
        run(line, folder)


@pytest.mark.slow
def test_what_is_shown_is_what_is_printed(folder):
    (block,) = blocks(GUIDE, "console")
    for session in block.split("$ ")[1:]:
        command, *shown = session.splitlines()
        done = shell(command, folder)
        assert done.returncode == (1 if "train" in command else 0), done.stderr[-3000:]
        pattern = ".*".join(re.escape(line).replace(r"\.\.\.", ".*") for line in shown)
        assert re.search(pattern, done.stdout + done.stderr, re.DOTALL), (
            shown,
            done.stdout,
            done.stderr[-2000:],
        )
