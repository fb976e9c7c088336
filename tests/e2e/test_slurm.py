"""The batch scripts of deploy/slurm, with a Slurm that is played on one machine."""

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from groundup.cli.run_config import presets
from groundup.core.config import resolve, to_yaml
from groundup.train.config import TrainConfig
from tests.forked import python
from tests.parallel.test_restarts import PROGRAM, curve, wait_for_steps
from tests.runs import make_config, make_data

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "deploy/slurm"
GUIDE = (ROOT / "docs/guides/multi-node.md").read_text()
TIMEOUT_SECONDS = 280


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def submit(script: str, folder: Path, config, *overrides: str, nodes: int, fault: str = ""):
    """The script's shell, with its output in a file."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("srun", "scontrol", "scancel"):
        fake = programs / name
        fake.write_text(f"#!{sys.executable}\n" + Path(__file__).with_name("fake_slurm.py").read_text())
        fake.chmod(0o755)
    program = programs / "groundup"
    program.write_text(f'#!/bin/sh\nexec {python()} {PROGRAM} "$@"\n')
    program.chmod(0o755)
    torchrun = programs / "torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec {python()} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    (folder / "run.yaml").write_text(to_yaml(config))
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FAKE_SLURM": str(folder),
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": str(random.randrange(100_000)),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "0",
        "GPUS_PER_NODE": "1",
        "FAULT_MARKS": str(folder / "marks"),
        "RANKS_PYTHON": python(),
    }
    if fault:
        environment["FAULT"] = fault
    with (folder / "log").open("w") as log:
        words = ["bash", str(SCRIPTS / script), "run.yaml", *overrides]
        return subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)


def end(shell, folder: Path) -> tuple[int, str]:
    try:
        code = shell.wait(timeout=TIMEOUT_SECONDS)
    finally:
        shell.kill()
    return code, (folder / "log").read_text()


@pytest.mark.slow
def test_srun_starts_again_after_a_crash(data, tmp_path):
    config = make_config(data, tmp_path / "run", "num_steps=12", "optimizer.kind=sgd")
    shell = submit("train.sbatch", tmp_path, config, "layout.dp=2", nodes=1, fault="kill:1:8:1")
    code, log = end(shell, tmp_path)
    assert code == 0, log
    assert "rank 1" in log[log.index("groundup: first failure: ") :].splitlines()[0]
    assert "continuing from" in log
    assert sorted(curve(config.run_dir)) == list(range(1, 13))


@pytest.mark.slow
def test_srun_does_not_start_again_when_the_time_is_over_or_nothing_was_saved(data, tmp_path):
    config = make_config(data, tmp_path / "run", "num_steps=100000", "optimizer.kind=sgd")
    shell = submit("train.sbatch", tmp_path, config, "layout.dp=2", nodes=1)
    wait_for_steps(config.run_dir, 5, shell)
    shell.send_signal(signal.SIGTERM)
    code, log = end(shell, tmp_path)
    assert code == 128 + signal.SIGTERM
    assert len(re.findall(r"Interrupted|stopped after step \d+, which is saved", log)) == 1, log
    assert "continuing from" not in log

    (tmp_path / "bad").mkdir()
    shell = submit("train.sbatch", tmp_path / "bad", config, "layout.dp=3", nodes=1)
    code, log = end(shell, tmp_path / "bad")
    assert code == 1
    assert log.count("layout cannot work") in (1, 2)  # each of two ranks at most once


@pytest.mark.slow
def test_torchrun_on_two_nodes(data, tmp_path):
    config = make_config(data, tmp_path / "run", "optimizer.kind=sgd")
    shell = submit("train-torchrun.sbatch", tmp_path, config, "layout.dp=0", nodes=2)
    code, log = end(shell, tmp_path)
    assert code == 0, log
    assert "2 ranks: dp 2" in log
    assert sorted(curve(config.run_dir)) == list(range(1, 7))


def lines_of_guide() -> list[str]:
    """The command lines of the guide, continuations joined."""
    blocks = re.findall(r"^```(?:bash|text)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    joined = "".join(blocks).replace("\\\n", " ")
    return [line for line in joined.splitlines() if re.search(r"\bgroundup train\b|sbatch", line)]


def test_the_commands_of_the_guide_name_settings_and_files_that_exist():
    lines = lines_of_guide()
    assert len(lines) == 5
    for line in lines:
        assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0, line
        for script in re.findall(r"examples/\S+", line):
            assert (ROOT / script).is_file()
        overrides = [word for word in line.split() if re.fullmatch(r"[a-z_.]+=[\w.]+", word)]
        words = ("preset=gpt2-124m", "run_dir=run", "data.path=data", *overrides)
        resolve(TrainConfig, overrides=words, presets=presets())


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.name)
def test_batch_scripts_are_sound_shell(script):
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
