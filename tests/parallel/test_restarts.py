"""A run that fails starts again from its newest checkpoint, and ends as if nothing had happened."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
import pytest

from groundup.core.config import to_yaml
from groundup.launch.errors import HANG, RankFailure
from groundup.launch.restart_policy import RestartPolicy
from tests.forked import python
from tests.runs import make_config, make_data

PROGRAM = Path(__file__).with_name("faulty_training.py")
SGD = ("optimizer.kind=sgd", "optimizer.lr=0.3")
TIMEOUT_SECONDS = 280


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def start(
    config,
    *words: str,
    fault: str = "",
    launch: Sequence[str] = (),
    more: Mapping[str, str] | None = None,
    has_children: bool = False,
) -> "subprocess.Popen[bytes]":
    """`groundup train` of a config; its stderr goes to a file beside the run folder.

    The process is only a client of what is started, unless its children are asked for.
    """
    config.run_dir.mkdir(parents=True, exist_ok=True)
    file = config.run_dir.with_suffix(".yaml")
    file.write_text(to_yaml(config))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FAULT_MARKS": str(config.run_dir / "marks")}
    environment |= {"RANKS_PYTHON": python(), "PYTHON_EXEC": python()}  # the latter for torchrun's ranks
    environment |= more or {}
    if fault:
        environment["FAULT"] = fault
    with said_by(config).open("w") as stderr:
        return subprocess.Popen(
            [sys.executable if has_children else python(), *launch, str(PROGRAM), "train", str(file), *words],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )


def said_by(config) -> Path:
    """Where a run's stderr is."""
    return config.run_dir.with_suffix(".stderr")


def finish(config, process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """Exit code and stderr; the process is gone whatever happens."""
    try:
        code = process.wait(timeout=TIMEOUT_SECONDS)
    finally:
        process.kill()
    return code, said_by(config).read_text()


def train(config, *words: str, fault: str = "") -> tuple[int, str]:
    """Exit code and stderr of a run."""
    return finish(config, start(config, *words, fault=fault))


def curve(run_dir: Path) -> dict[int, tuple[float, float]]:
    """Step -> loss and gradient norm."""
    records = [orjson.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().splitlines()]
    return {r["step"]: (r["loss"], r["grad_norm"]) for r in records if r["kind"] == "train"}


def failure(step=7, kind="RuntimeError", message="a bug", **more) -> RankFailure:
    return RankFailure(rank=1, time=0.0, step=step, phase="training", kind=kind, message=message, **more)


def test_a_failure_is_followed_by_a_restart_that_says_why_and_from_where():
    decision = RestartPolicy(3, lambda: 5).decide(failure(), oom_kills=0)
    assert decision.restart
    assert decision.message == (
        "restart 1 of 3: all ranks continue from step 5, after rank 1 failed in step 7 (training):"
        " RuntimeError: a bug"
    )
    assert "from the beginning" in RestartPolicy(3, lambda: 0).decide(failure(), oom_kills=0).message


def test_restarts_are_counted():
    restarts = RestartPolicy(2, lambda: 5)
    kinds = ("A", "B", "C")
    assert [restarts.decide(failure(kind=kind), oom_kills=0).restart for kind in kinds] == [True, True, False]
    assert not RestartPolicy(0, lambda: 5).decide(failure(), oom_kills=0).restart


def test_what_comes_again_at_the_same_step_without_progress_is_given_up():
    restarts = RestartPolicy(9, lambda: 5)
    assert restarts.decide(failure(message="at 0x7f01, 12.5 s"), oom_kills=0).restart
    decision = restarts.decide(failure(message="at 0x55aa, 13.1 s"), oom_kills=0)
    assert not decision.restart
    assert "twice in the same way" in decision.message


@pytest.mark.parametrize(
    "second", [failure(step=8), failure(kind="OSError"), failure(kind=HANG), failure(message="another")]
)
def test_another_failure_is_no_repetition(second):
    restarts = RestartPolicy(9, lambda: 5)
    restarts.decide(failure(), oom_kills=0)
    assert restarts.decide(second, oom_kills=0).restart


def test_a_checkpoint_between_makes_it_no_repetition():
    steps = iter((5, 6))
    restarts = RestartPolicy(9, lambda: next(steps))
    assert all(restarts.decide(failure(), oom_kills=0).restart for _ in range(2))


@pytest.mark.parametrize(("oom_kills", "again"), [(0, True), (1, False)])
def test_a_kill_from_outside_is_no_repetition_but_one_for_want_of_memory_is(oom_kills, again):
    killed = failure(kind="exit", message="killed by signal 9 (SIGKILL)", exit_code=-signal.SIGKILL)
    restarts = RestartPolicy(9, lambda: 5)
    assert restarts.decide(killed, oom_kills=oom_kills).restart
    assert restarts.decide(killed, oom_kills=oom_kills).restart == again


def test_what_the_user_must_mend_is_not_restarted():
    decision = RestartPolicy(9, lambda: 5).decide(failure(kind="DataError", needs_user=True), oom_kills=0)
    assert not decision.restart
    assert "DataError" in decision.message


SETTINGS = ("num_steps=24", "checkpoint.interval=5", "layout.dp=2", *SGD)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory) -> dict[int, tuple[float, float]]:
    config = make_config(data, tmp_path_factory.mktemp("whole") / "run", *SETTINGS)
    code, stderr = train(config)
    assert code == 0, stderr
    assert len(curve(config.run_dir)) == 24
    return curve(config.run_dir)


@pytest.mark.slow
def test_a_killed_rank_changes_nothing(data, tmp_path, undisturbed):
    config = make_config(data, tmp_path / "run", *SETTINGS)
    code, stderr = train(config, "--max-restarts", "1", fault="kill:1:13:1")
    assert code == 0, stderr
    assert "restart 1 of 1: all ranks continue from step 10, after rank 1 failed in step 13" in stderr
    assert "restart 1 of 1" in (config.run_dir / "train.log").read_text()
    assert curve(config.run_dir) == undisturbed
    kept = sorted(path.name for path in (config.run_dir / "ranks").rglob("*.log"))
    assert kept == ["rank-1.log"]  # of the attempt that failed


@pytest.mark.slow
def test_a_rank_that_hangs_changes_nothing(data, tmp_path, undisturbed):
    watchdog = ("watchdog.seconds=3", "watchdog.long_phase_seconds=10")
    config = make_config(data, tmp_path / "run", *SETTINGS, *watchdog)
    code, stderr = train(config, "--max-restarts", "1", fault="sleep:1:13:1")
    assert code == 0, stderr
    assert re.search(r"first failure: rank 1 \(.*\), step 13, phase training: Hang: no progress", stderr)
    assert "time.sleep(600)" in stderr
    assert curve(config.run_dir) == undisturbed


@pytest.mark.slow
def test_a_bug_is_tried_twice_and_bad_data_once(data, tmp_path):
    config = make_config(data, tmp_path / "bug", "layout.dp=2", *SGD)
    code, stderr = train(config, "--max-restarts", "5", fault="bug:1:5:9")
    assert code == 1
    assert stderr.count("groundup: first failure: rank 1 ") == 2
    assert "restart 1 of 5: all ranks continue from step 3" in stderr
    assert "failed twice in the same way" in stderr
    assert stderr.splitlines()[-2].startswith("groundup: first failure: rank 1 ")

    config = make_config(data, tmp_path / "bad", *SGD)  # one process alone, too
    code, stderr = train(config, "--max-restarts", "5", fault="data:0:5:9")
    assert code == 1
    assert stderr.count("groundup: first failure: ") == 1
    assert "not restarting: DataError is not transient; fix it first" in stderr


@pytest.mark.slow
def test_who_is_asked_to_stop_does_not_restart(data, tmp_path):
    config = make_config(data, tmp_path / "run", "num_steps=100000", "layout.dp=2", *SGD)
    process = start(config, "--max-restarts", "5")
    wait_for_steps(config.run_dir, 3, process)
    process.send_signal(signal.SIGTERM)
    code, stderr = finish(config, process)
    assert code == 128 + signal.SIGTERM
    assert "restart" not in stderr
    assert re.search(r"stopped after step \d+, which is saved", stderr)


@pytest.mark.slow
def test_under_srun_the_first_failure_is_named_by_each_machine(data, tmp_path):
    """Two tasks of a step on one machine, with the environment that srun gives them."""
    config = make_config(data, tmp_path / "run", "layout.dp=2", *SGD)
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0"}
    step |= {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        step |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    tasks = []
    for number in ("1", "0"):
        more = {**step, "SLURM_PROCID": number, "SLURM_LOCALID": number}
        tasks.append(start(config, fault="bug:1:5:1", more=more))
        if number == "1":
            said = said_by(config).rename(tmp_path / "first")
    assert tasks[0].wait(timeout=TIMEOUT_SECONDS) == 1
    code, stderr = finish(config, tasks[1])
    assert code == 1
    assert "[rank 1] RuntimeError: a bug" in said.read_text()
    assert "Traceback" not in stderr  # of the lost connection
    last = stderr.splitlines()[-1]
    assert last.startswith(
        f"groundup: first failure: rank 1 ({socket.gethostname()}), step 5, phase training:"
    )
    assert last.endswith("(rank 0 ends because of it)")


def wait_for_steps(
    run_dir: Path, step: int, process: "subprocess.Popen[bytes]", seconds: float = 600
) -> None:
    """Until so many steps are in the metrics, or the run has ended, or the time is over."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        if (run_dir / "metrics.jsonl").is_file() and max(curve(run_dir), default=0) >= step:
            return
        time.sleep(0.02)


def children(process: int) -> list[int]:
    """The processes that one has started, from its main thread."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the ranks through /proc")
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_ranks_that_are_killed_at_random_change_nothing(data, tmp_path, kills):
    settings = ("num_steps=200", "checkpoint.interval=10", "layout.dp=2", *SGD)
    code, stderr = train(make_config(data, tmp_path / "whole", *settings))
    assert code == 0, stderr

    draw = random.Random(1)
    config = make_config(data, tmp_path / "run", *settings)
    process = start(config, "--max-restarts", str(kills), has_children=True)
    num_killed = 0
    try:
        while num_killed < kills and process.poll() is None:
            # Half of the times a while after its start, be it up or not; else among its steps.
            step = draw.randint(180 * num_killed // kills, 180 * (num_killed + 1) // kills)
            wait_for_steps(config.run_dir, step, process, seconds=draw.choice((draw.uniform(0, 4), 600)))
            ranks = children(process.pid)
            if len(ranks) == 2:
                os.kill(draw.choice(ranks), signal.SIGKILL)
                num_killed += 1
                while process.poll() is None and set(ranks) & set(children(process.pid)):
                    time.sleep(0.02)  # for the next attempt
    finally:
        code, stderr = finish(config, process)
    assert code == 0, stderr
    assert num_killed == kills
    assert stderr.count(f" of {kills}: all ranks continue from ") == kills
    assert curve(config.run_dir) == curve(tmp_path / "whole")
    assert len(curve(config.run_dir)) == 200
