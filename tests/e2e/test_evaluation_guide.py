"""The commands of docs/guides/evaluation.md run as they stand."""

import json
import shutil
from pathlib import Path

import pytest

from groundup.checkpoint.huggingface.weights import write_huggingface
from tests.guides import commands, run
from tests.task_files import write_task_file
from tests.tiny import tiny_model

GUIDE = "docs/guides/evaluation.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the models and items that the guide takes for granted."""
    for name, model in (("model", "gpt2"), ("other", "llama")):
        write_huggingface(tiny_model(model), tmp_path / name)
    (tmp_path / "sets").mkdir()
    for kind in ("lambada", "hellaswag", "wikitext", "piqa"):
        write_task_file(kind, tmp_path / "sets", count=8)
    shutil.move(tmp_path / "sets/piqa_test.jsonl", tmp_path / "sets/piqa_valid.jsonl")
    return tmp_path


@pytest.mark.slow
def test_every_command_runs(folder: Path) -> None:
    first, second, compared, few_shot = [run(line, folder) for line in commands(GUIDE)]
    assert "published [1]" in first
    assert "items/s" in second
    assert compared.startswith("task ")
    assert json.loads(few_shot)["num_fewshot"] == 2
