"""The README's commands run as they stand, in order, in an empty folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from groundup.core.files import open_decompressed

_ROOT = Path(__file__).resolve().parents[2]
_README = (_ROOT / "README.md").read_text()


def blocks(language):
    """The code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", _README, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def megatron_folder(tmp_path_factory, shared_data):
    """A folder with the files that those who come from Megatron-LM bring along."""
    folder = tmp_path_factory.mktemp("megatron")
    for brought, ours in (("gpt2-vocab.json", "vocab.json"), ("gpt2-merges.txt", "merges.txt")):
        shutil.copy(shared_data / "gpt2" / ours, folder / brought)
    for brought, ours in (("train_data.json", "corpus_en"), ("codeparrot_data.json", "corpus_code")):
        with (folder / brought).open("wb") as out:
            for path in sorted((shared_data / ours).glob("*.zst")):
                with open_decompressed(path) as stream:
                    shutil.copyfileobj(stream, out)
    return folder


def commands(*, of_megatrons_section):
    """The command lines after the two of make, in order."""
    lines = [line for block in blocks("bash")[1:] for line in block.strip().splitlines()]
    return [line for line in lines if bool(re.search("my-gpt2|codeparrot", line)) == of_megatrons_section]


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
    lines = commands(of_megatrons_section=False)
    outputs = {line: run(["bash", "-c", line], folder) for line in lines}
    by_verb = {line.split(" --")[0]: out for line, out in outputs.items()}
    assert "perplexity" in by_verb["groundup eval run"]
    assert by_verb["groundup generate run"].startswith("def hello_world():")
    assert "top-1 agreement" in by_verb["groundup convert run exported"]
    assert "# command line (optimizer.lr=4e-3)" in outputs[lines[-1]]
    pytest.importorskip("transformers")
    (code,) = blocks("python")  # of the folder that was just exported
    assert run([sys.executable, "-c", code], folder).startswith("def hello_world():")


def test_what_megatrons_users_type_prints_what_is_shown(megatron_folder):
    shown = {line.strip() for block in blocks("text") for line in block.splitlines()}
    for command in commands(of_megatrons_section=True):
        for line in run(["bash", "-c", command], megatron_folder).splitlines():
            if "inspect" not in command and "code.path" not in command:
                assert line.strip() in shown, (command, line)


def test_every_linked_file_is_there():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", _README):
        assert (_ROOT / target).exists(), target
