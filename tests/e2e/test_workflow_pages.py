"""Pages of docs/workflows: their commands are those of the scripts in examples/, and print what is shown."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.guides import ROOT, blocks, is_shown, run, sessions

PAGES = ROOT / "docs/workflows"
# Page, its script, and what the script is given.
WORKFLOWS = [
    ("megatron-gpt2-345m", "w1-gpt2-345m", ["urls", "gpt2", "lambada_test.jsonl"]),
    ("deepspeed-gpt2-345m", "w2-deepspeed", ["wikipedia.json", "gpt2"]),
    ("codeparrot-110m", "w3-codeparrot", ["codeparrot_data.json"]),
    ("llama2-7b-continued", "w4-llama-continue", ["llama-2-7b-hf", "wudao.json"]),
    ("fineweb-gpt2-124m", "w5-fineweb-124m", ["edu_fineweb10B", "evaluation"]),
]
NAMES = [page for page, _, _ in WORKFLOWS]
RECORDER = """#!/bin/bash
printf '%q ' "$(basename "$0")" "$@" >>"$RECORD"
echo >>"$RECORD"
if [ -p /dev/stdin ]; then cat >/dev/null; fi
"""
RECORDED = ("groundup", "curl", "shuf")


@pytest.fixture
def folder(tmp_path):
    """With programs that write down how they are called, and what a script looks for before it calls them."""
    (tmp_path / "bin").mkdir()
    for name in (*RECORDED, "python", "bash"):
        program = tmp_path / "bin" / name
        program.write_text(RECORDER)
        program.chmod(0o755)
    for brought in ("urls", "gpt2", "llama-2-7b-hf", "edu_fineweb10B", "evaluation"):
        (tmp_path / brought).mkdir()
    files = ["lambada_test.jsonl", "wikipedia.json", "codeparrot_data.json", "wudao.json"]
    files += ["gpt2/vocab.json", "gpt2/merges.txt", "edu_fineweb10B/edufineweb_train_000001.npy"]
    files += [f"evaluation/{task}.jsonl" for task in ("hellaswag", "lambada", "storycloze")]
    for file in files:
        (tmp_path / file).touch()
    return tmp_path


def recorded(words: list[str], folder: Path) -> list[list[str]]:
    """The commands that bash calls, in order of their names and words, with paths as a reader types them."""
    record = folder / "record"
    record.unlink(missing_ok=True)
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "RECORD": str(record)}
    subprocess.run(["/bin/bash", *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False)
    text = record.read_text().replace(f"{folder}/", "")
    text = re.sub(rf"{re.escape(str(ROOT))}/examples/[\w-]+/", "", text)
    calls = [shlex.split(line) for line in text.splitlines()]
    told = [call for call in calls if call[0] in RECORDED and call[1] != "plan"]
    return sorted(call for call in told if not call[-1].endswith("/health"))


@pytest.mark.parametrize(("page", "script", "arguments"), WORKFLOWS, ids=NAMES)
def test_the_commands_are_those_of_the_script(page, script, arguments, folder):
    of_script = recorded([f"{ROOT}/examples/{script}/run.sh", *arguments, "out"], folder)
    typed = "".join(blocks(f"docs/workflows/{page}.md", "bash"))
    of_page = recorded(["-c", typed], folder)
    assert len(of_script) >= 4
    assert of_page == of_script


@pytest.mark.parametrize(("page", "script"), [(page, script) for page, script, _ in WORKFLOWS], ids=NAMES)
def test_what_the_small_run_prints_is_what_the_example_shows(page, script):
    *_, shown = blocks(f"docs/workflows/{page}.md", "text")
    assert [shown] == blocks(f"examples/{script}/README.md", "text")


@pytest.mark.parametrize("page", NAMES)
def test_the_plan_is_what_is_printed(page, tmp_path):
    ((line,), shown), *_ = [one for one in sessions(f"docs/workflows/{page}.md") if "plan" in one[0][0]]
    assert is_shown(shown, run(line, tmp_path))


@pytest.mark.parametrize("page", ["index", *NAMES])
def test_what_it_links_to_is_there(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)", (PAGES / f"{page}.md").read_text()):
        assert (PAGES / target).exists(), target


def test_the_index_names_every_page():
    linked = re.findall(r"\]\(([\w-]+)\.md\)", (PAGES / "index.md").read_text())
    assert linked == NAMES
