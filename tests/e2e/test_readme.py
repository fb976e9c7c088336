"""The README's commands run as they stand, in order, in an empty folder."""

import re
import shlex
import shutil

import pytest

from groundup.core.files import open_decompressed
from tests.guides import ROOT, blocks, run

README = "README.md"


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
    lines = [line for block in blocks(README, "bash")[1:] for line in block.strip().splitlines()]
    return [line for line in lines if bool(re.search("my-gpt2|codeparrot", line)) == of_megatrons_section]


def test_make_has_the_targets_that_are_promised():
    make_block, *_ = blocks(README, "bash")
    for line in make_block.strip().splitlines():
        target = line.split("#")[0].split()[1]
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_every_command_runs(folder):
    lines = commands(of_megatrons_section=False)
    outputs = {line: run(line, folder) for line in lines}
    by_verb = {line.split(" --")[0]: out for line, out in outputs.items()}
    assert "perplexity" in by_verb["groundup eval run"]
    assert by_verb["groundup generate run"].startswith("def hello_world():")
    assert "top-1 agreement" in by_verb["groundup convert run exported"]
    assert "# command line (optimizer.lr=4e-3)" in outputs[lines[-1]]
    pytest.importorskip("transformers")
    (code,) = blocks(README, "python")  # of the folder that was just exported
    assert run(f"python -c {shlex.quote(code)}", folder).startswith("def hello_world():")


def test_what_megatrons_users_type_prints_what_is_shown(megatron_folder):
    shown = {line.strip() for block in blocks(README, "text") for line in block.splitlines()}
    for command in commands(of_megatrons_section=True):
        for line in run(command, megatron_folder).splitlines():
            if "inspect" not in command and "code.path" not in command:
                assert line.strip() in shown, (command, line)


def test_every_linked_file_is_there():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / README).read_text()):
        assert (ROOT / target).exists(), target
