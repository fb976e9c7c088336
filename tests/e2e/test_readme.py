"""The README's commands run as they stand, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_README = (_ROOT / "README.md").read_text()


def blocks(language):
    """The code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", _README, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


def run(command, folder):
    """Runs a shell command as a user would, with the tests' interpreter first on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_make_has_the_targets_that_are_promised():
    make_block, *_ = blocks("bash")
    for line in make_block.strip().splitlines():
        target = line.split("#")[0].split()[1]
        assert re.search(rf"^{target}:", (_ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_every_command_runs(folder):
    _, *commands = blocks("bash")
    outputs = {
        line: run(["bash", "-c", line], folder) for block in commands for line in block.strip().splitlines()
    }
    by_verb = {line.split(" --")[0]: out for line, out in outputs.items()}
    assert "perplexity" in by_verb["groundup eval run"]
    assert by_verb["groundup generate run"].startswith("def hello_world():")
    assert "top-1 agreement" in by_verb["groundup convert run exported"]
    assert "# command line (optimizer.lr=4e-3)" in outputs[list(outputs)[-1]]


def test_transformers_reads_the_export(folder):
    pytest.importorskip("transformers")
    (code,) = blocks("python")
    assert run([sys.executable, "-c", code], folder).startswith("def hello_world():")


def test_every_linked_file_is_there():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", _README):
        assert (_ROOT / target).exists(), target
