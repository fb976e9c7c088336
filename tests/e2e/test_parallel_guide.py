"""The commands of docs/guides/parallel.md run as they stand, and print what is shown."""

from pathlib import Path

import pytest

from tests.guides import commands, require_shown, run
from tests.runs import write_run

GUIDE = "docs/guides/parallel.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With the config and the data that the guide takes for granted."""
    folder = tmp_path_factory.mktemp("guide")
    write_run(folder, "num_steps=2", "data.split=98,1,1")
    return folder


@pytest.mark.slow
def test_every_command_runs(folder):
    lines = commands(GUIDE)
    assert len(lines) == 3
    for line in lines:
        run(line, folder)
    assert {path.name for path in (folder / "runs").iterdir()} == {"four", "less", "least"}


@pytest.mark.slow
def test_what_is_shown_is_what_is_printed(folder):
    require_shown(GUIDE, folder)
