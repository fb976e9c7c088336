"""The commands of docs/guides/evaluation.md run as they stand."""

import json
import shutil
from pathlib import Path

import pytest

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import as_lazy
from groundup.checkpoint.native.model import write_native
from tests.guides import commands, run
from tests.task_files import write_task_file
from tests.tiny import tiny_model

GUIDE = "docs/guides/evaluation.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the models and items that the guide takes for granted."""
    for name, model in (("model", "gpt2"), ("other", "llama")):
        write_huggingface(tiny_model(model), tmp_path / name)
    write_native(as_lazy(tiny_model("gpt2")), tmp_path / "run")
    (tmp_path / "sets").mkdir()
    for kind in ("lambada", "hellaswag", "wikitext", "piqa"):
        write_task_file(kind, tmp_path / "sets", count=8)
    shutil.move(tmp_path / "sets/piqa_test.jsonl", tmp_path / "sets/piqa_valid.jsonl")
    return tmp_path


@pytest.mark.slow
def test_every_command_runs(folder: Path) -> None:
    first, second, compared, few_shot, over_ranks, by_step = [run(line, folder) for line in commands(GUIDE)]
    assert "published [1]" in first
    assert "items/s" in second
    assert compared.startswith("task ")
    assert json.loads(few_shot)["num_fewshot"] == 2
    assert over_ranks.startswith("lambada of model")
    alone, spread = [json.loads((folder / name).read_text())["tasks"] for name in ("a.json", "c.json")]
    for one, other in zip(alone, spread, strict=False):
        assert one["figures"] == pytest.approx(other["figures"], rel=1e-5)
        assert one["items"] and len(one["items"]) == len(other["items"])
    assert by_step.splitlines()[-1] == "Drawn in run/evaluations/scores.html"
