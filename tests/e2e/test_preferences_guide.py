"""The commands of docs/guides/preferences.md run as they stand."""

import json

import pytest

from tests.guides import commands, run
from tests.unit.finetune.preferences import write_base_and_pairs


@pytest.mark.example
def test_every_command_runs(tmp_path):
    write_base_and_pairs(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "base").rename(tmp_path / "runs" / "chat")
    lines = commands("docs/guides/preferences.md")
    assert len(lines) == 5
    for line in lines:
        run(line, tmp_path)
    records = [json.loads(line) for line in (tmp_path / "runs/dpo/metrics.jsonl").read_text().splitlines()]
    assert any("reward_accuracy" in record for record in records)
    assert len(list((tmp_path / "runs/reference").iterdir())) == 2  # train and validation, of both runs
