"""The commands of docs/guides/checkpoints.md run as they stand, with a folder for the bucket."""

import json
import shutil

import pytest

from groundup.checkpoint.native.folder import resolve_checkpoint
from groundup.core.config import to_yaml
from tests.guides import commands, run
from tests.runs import SENTENCES, make_config, make_data


@pytest.fixture
def folder(tmp_path):
    """With the config, the data and the runs that the guide takes for granted."""
    data = make_data(tmp_path)
    config = make_config(data, tmp_path / "runs/gpt2", "num_steps=20", "checkpoint.interval=5")
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    run("groundup train run.yaml", tmp_path)
    for copy in ("a", "b"):
        shutil.copytree(tmp_path / "runs/gpt2", tmp_path / "runs" / copy)
    documents = ({"text": ". ".join(SENTENCES * number)} for number in range(1, 40))
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (tmp_path / "bucket").mkdir()
    return tmp_path


@pytest.mark.slow
def test_every_command_runs(folder):
    lines = commands("docs/guides/checkpoints.md")
    assert len(lines) == 13
    for line in lines:
        run(line.replace("s3://bucket", f"file://{folder}/bucket"), folder)
    tuned, longer = (resolve_checkpoint(folder / "runs" / name) for name in ("tuned", "longer"))
    assert (tuned.name, longer.name) == ("step_0000020", "step_0000040")
    assert (folder / "runs/pulled/checkpoints/latest").exists()
