"""The commands of docs/guides/megatron-training.md run as they stand, and print what it shows."""

import shutil

import pytest

from tests.guides import blocks, run
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
    printed = [run(block, folder) for block in blocks(GUIDE, "bash")]
    assert len(printed) == 4
    [shown] = blocks(GUIDE, "text")
    for line in shown.splitlines():
        first, *rest = line.split("...")
        assert any(found.startswith(first) for found in printed[1].splitlines()), line
        assert all(part in printed[1] for part in rest)
    assert (folder / "moved-on/latest_checkpointed_iteration.txt").read_text() == "20"
    assert (folder / "moved-on/iter_0000020/mp_rank_00/model_optim_rng.pt").is_file()
