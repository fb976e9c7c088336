"""The README's commands run as they stand, in order, in an empty folder."""

import re
import shlex
import shutil

import pytest

from groundup.core.compressed import open_decompressed
from tests.guides import ROOT, blocks, is_shown, require_sessions, run, shell

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
    outputs = {line: run(line, folder, fresh=True) for line in lines}
    by_verb = {line.split(" --")[0]: out for line, out in outputs.items()}
    assert "perplexity" in by_verb["groundup eval run"]
    assert by_verb["groundup generate run"].startswith("def hello_world():")
    assert "top-1 agreement" in by_verb["groundup convert run exported"]
    assert "# command line (optimizer.lr=4e-3)" in outputs[lines[-1]]
    pytest.importorskip("transformers")
    (code,) = blocks(README, "python")  # of the folder that was just exported
    assert run(f"python -c {shlex.quote(code)}", folder, fresh=True).startswith("def hello_world():")


def test_what_is_shown_is_what_is_printed(megatron_folder):
    compared = require_sessions(README, megatron_folder)
    quickstart, *others = blocks(README, "text")  # the first is long to run, and of one machine
    assert "[1/6] corpus" in quickstart
    assert compared == len(others) == 3


def test_what_the_guide_of_documents_shows_is_printed(megatron_folder):
    run(commands(of_megatrons_section=True)[0], megatron_folder)  # finds its work done, or does it
    (megatron_folder / "data").symlink_to(megatron_folder, target_is_directory=True)
    config, *_ = blocks("docs/guides/documents.md", "yaml")
    (megatron_folder / "run.yaml").write_text(f"{config}\nnum_steps: 10\n")
    (shown,) = blocks("docs/guides/documents.md", "text")
    assert shown.strip() in run("groundup tokens plan run.yaml", megatron_folder).splitlines()


def test_a_wrong_config_is_refused_as_shown(tmp_path):
    (block,) = blocks(README, "console")
    command, shown = block.removeprefix("$ ").split("\n", 1)
    lines = ["preset: tiny", "run_dir: run", "num_steps: 5", "optimzer:", "  lr: 1", "data:", "  path: x", ""]
    (tmp_path / "run.yaml").write_text("\n".join([*lines, "precision: bf61", ""]))
    done = shell(command, tmp_path)
    assert done.returncode == 1
    assert is_shown(shown, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("read: 9.82MB in 0s (69.5MB/s)", "read: 9.82MB in 12s (1.2GB/s)", True),
        ("read: 9.82MB in 0s (69.5MB/s)", "read: 9.83MB in 0s (69.5MB/s)", False),
        (
            "step 5 | 10.8k tokens/s | 0.289 TFLOP/s | ETA 3m05s",
            "step 5 | 9 tokens/s | 1 TFLOP/s | ETA 5s",
            True,
        ),
        ("step 5 | loss 6.87", "step 6 | loss 6.87", False),
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("a\nd", "a\nb\nc\nd\n", False),
        ("a long line", "a long\n  line", True),
        ("a", "a\nmore", False),
        ("a\nmore", "a", False),
        ("12:00:01 restart 1", "23:59:59 restart 1", True),
    ],
)
def test_what_is_compared_of_an_output(shown, printed, same):
    assert is_shown(shown, printed) == same


def test_every_linked_file_is_there():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / README).read_text()):
        assert (ROOT / target).exists(), target
