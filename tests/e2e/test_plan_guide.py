"""The commands of docs/guides/plan.md run as they stand, and print what is shown."""

from pathlib import Path

import pytest

from tests.guides import commands, require_sessions, run
from tests.runs import write_run

GUIDE = "docs/guides/plan.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With the config and the data that the guide takes for granted."""
    folder = tmp_path_factory.mktemp("guide")
    write_run(folder)
    return folder


def test_every_command_runs(folder):
    lines = commands(GUIDE)
    assert len(lines) == 7
    for line in lines:
        if "gpt2-1558m" not in line or "--search" in line:
            run(line, folder)


def test_what_is_shown_is_what_is_printed(folder):
    assert require_sessions(GUIDE, folder) == 3
