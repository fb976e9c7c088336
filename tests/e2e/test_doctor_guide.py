"""The commands of the guides of the doctor and of DeepSpeed's config run as they stand."""

import orjson
import pytest

from tests.guides import blocks, commands, require_sessions, run, shell
from tests.runs import write_run

DOCTOR, DEEPSPEED = "docs/guides/doctor.md", "docs/guides/deepspeed.md"


def test_deepspeeds_config_as_shown(tmp_path):
    write_run(tmp_path)
    (config,) = blocks(DEEPSPEED, "json")
    (tmp_path / "ds_config.json").write_text(config)
    assert require_sessions(DEEPSPEED, tmp_path) == 1
    translate, train, show = commands(DEEPSPEED)
    noted = shell(translate, tmp_path).stderr
    assert "offload_optimizer: weights and optimizer state stay on the device" in noted
    assert "harmless: zero_optimization.overlap_comm" in noted
    run(train, tmp_path)
    lines = (tmp_path / "runs/deepspeed/metrics.jsonl").read_bytes().splitlines()
    rates = [one["lr"] for one in map(orjson.loads, lines) if one["kind"] == "train"]
    assert rates == pytest.approx([0.005, 0.01, 0.0075, 0.005, 0.0025, 0.0])
    shown = run(show, tmp_path)
    assert "# command line (optimizer.lr=0.001)" in shown
    assert "# ds_config.json:8 (gradient_clipping)" in shown


def require_no_failed_check(command, folder):
    """A machine may have problems; then the exit code is 1, and all checks have run all the same."""
    done = shell(command, folder)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    assert "check failed" not in done.stdout
    return done.stdout


@pytest.mark.exhaustive
def test_the_doctor_of_this_machine(tmp_path):
    lines = commands(DOCTOR)
    assert len(lines) == 4
    whole, quick, as_json, nodes = (require_no_failed_check(line, tmp_path) for line in lines)
    assert "compiler: torch.compile" in whole and "compiler:" not in quick
    assert orjson.loads(as_json)["findings"]
    assert "all-reduce: 32 MiB" in nodes and "slow rank" in nodes
