"""The commands of docs/guides/megatron-training.md run as they stand, and print what it shows."""

import re
import shutil

import pytest

from tests.guides import blocks, run, sessions
from tests.runs import make_data

GUIDE = "docs/guides/megatron-training.md"


@pytest.fixture
def folder(tmp_path):
    """With a JSONL and the two files of a tokenizer, by the names of the tutorial."""
    made = tmp_path / "made"
    made.mkdir()
    make_data(made)
    shutil.copy(made / "documents.jsonl", tmp_path / "train_data.json")
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(made / "data_tokenizer" / name, tmp_path / f"gpt2-{name}")
    return tmp_path


@pytest.mark.slow
def test_every_command_runs_and_prints_what_the_guide_shows(folder):
    shown = {"\n".join([*lines, ""]): text.splitlines() for lines, text in sessions(GUIDE)}
    assert len(shown) == 2
    for block in blocks(GUIDE, "bash"):
        printed = run(block, folder)
        for line in shown.get(block, ()):
            pattern = ".*".join(map(re.escape, line.split("...")))
            assert re.search(f"^{pattern}$", printed, re.MULTILINE), line
    assert (folder / "checkpoints/iter_0000020/mp_rank_00/model_optim_rng.pt").is_file()
