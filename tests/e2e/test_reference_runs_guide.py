"""The commands of docs/guides/reference-runs.md run as they stand, and print what is shown."""

import json

import orjson
import pytest
import yaml

from groundup.verify.references import read_reference
from tests.guides import ROOT, blocks, commands, run, shell

GUIDE = "docs/guides/reference-runs.md"


def write_run_folder(folder, config, records):
    """A run folder with these settings, which are dotted, and records."""
    folder.mkdir(parents=True)
    tree = {}
    for key, value in config.items():
        *above, name = key.split(".")
        branch = tree
        for part in above:
            branch = branch.setdefault(part, {})
        branch[name] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    (folder / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))


@pytest.fixture
def folder(tmp_path):
    """With a seed of the reference as the quickstart's run, and one that was trained ten times as fast."""
    tiny = read_reference("tiny")
    losses = enumerate(tiny.losses[0].tolist(), start=1)
    records = [{"kind": "train", "step": step, "loss": loss} for step, loss in losses]
    write_run_folder(tmp_path / "quickstart/run", tiny.config, records)
    tried = json.loads((ROOT / "benchmarks/results/reference_runs.json").read_text())["runs"]
    fast = tried["learning rate x 10"]
    write_run_folder(tmp_path / "fast", fast["config"], fast["records"])
    return tmp_path


@pytest.mark.slow
def test_every_command_runs_and_prints_what_is_shown(folder):
    listed, compared = commands(GUIDE)
    assert "ref:tiny" in run(listed, folder)
    assert run(compared, folder).endswith("inside: as it should be\n")
    (session,) = blocks(GUIDE, "console")
    command, *shown = session.removeprefix("$ ").splitlines()
    done = shell(command, folder)
    printed = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 1
    assert [line for line in shown if line != "..." and line not in printed] == []
