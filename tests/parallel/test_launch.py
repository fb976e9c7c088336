"""Launching ranks: which one this process is, which failed first, and that none is left over."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from groundup.cli.app import run as run_command
from groundup.core.errors import ConfigError, MachineError
from groundup.launch.env import FAILURES_DIR, RankInfo, rank_from_env
from groundup.launch.errors import RankFailure, root_cause
from groundup.launch.forked_rank import GPU_FILES, is_safe_to_fork
from tests.forked import python

RANK = Path(__file__).with_name("rank_that_fails.py")
LAUNCH = (
    "import sys; from pathlib import Path; from groundup.launch.launcher import run_ranks;"
    "sys.exit(run_ranks(3, sys.argv[3:], command=sys.argv[1:3], folder=Path(sys.argv[5])))"
)
LAUNCH_FORKS = (
    "import runpy, sys; from pathlib import Path; from groundup import __main__ as program;"
    "from groundup.launch.launcher import run_ranks; script = sys.argv[2];"
    "program.main = lambda: runpy.run_path(script, run_name='__main__');"
    "sys.exit(run_ranks(3, sys.argv[3:], folder=Path(sys.argv[5])))"
)
FORKS = pytest.mark.skipif(
    sys.platform != "linux" or any(Path(path).exists() for path in GPU_FILES),
    reason="ranks are forks on Linux only, where there is no GPU",
)
START = pytest.mark.parametrize(
    "start", [LAUNCH, pytest.param(LAUNCH_FORKS, marks=FORKS)], ids=["new processes", "forks"]
)


def launcher(folder, culprit, how, script=RANK, interpreter=sys.executable, code=LAUNCH):
    """The launcher of three ranks, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, interpreter, script, str(culprit), how, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def failure_report(folder, culprit, how, script=RANK, interpreter=sys.executable, code=LAUNCH):
    """Exit code, and the lines on stderr from the first failure on."""
    process = launcher(folder, culprit, how, script, interpreter, code)
    try:
        _, stderr = process.communicate(timeout=240)
    finally:
        process.kill()
    assert stderr.count("groundup: first failure: ") == 1, stderr
    return process.returncode, stderr[stderr.index("groundup: first failure: ") :].splitlines(), stderr


WAYS = {
    "data": (1, "DataError: corpus.jsonl:8: document 7 is empty. Drop it."),
    "bug": (1, "ValueError: a bug"),
    "print": (3, "ended with exit code 3"),
    "exit": (4, "ended with exit code 4"),
    "kill": (137, "killed by signal 9 (SIGKILL)"),
}


@pytest.mark.parametrize(
    ("culprit", "start"),
    [
        (0, LAUNCH),
        (1, LAUNCH),
        pytest.param(0, LAUNCH_FORKS, marks=FORKS),
        pytest.param(2, LAUNCH_FORKS, marks=FORKS),
    ],
    ids=["0", "1", "0 of forks", "2 of forks"],
)
@pytest.mark.parametrize("how", WAYS)
def test_the_first_failure_is_named_last(tmp_path, culprit, start, how):
    code, lines, _ = failure_report(tmp_path, culprit, how, code=start)
    expected_code, message = WAYS[how]
    where = f"rank {culprit} ({os.uname().nodename}), step 812, phase backward: "
    assert lines[0].startswith(f"groundup: first failure: {where}{message}")
    assert code == expected_code
    log = f"  Its output: {tmp_path / f'rank-{culprit}.log'}"
    assert (lines[-1] == log) == (culprit > 0)  # rank 0 wrote it here


def test_a_killed_rank_is_explained_by_memory(tmp_path):
    _, lines, _ = failure_report(tmp_path, 1, "kill")
    assert "memory" in lines[1]
    assert "GB are free now" in lines[1]


@START
def test_a_crash_shows_the_python_stack(tmp_path, start):
    code, lines, stderr = failure_report(tmp_path, 2, "segv", code=start)
    assert code == 128 + signal.SIGSEGV
    assert "SIGSEGV" in lines[0]
    assert "in culprits_life" in stderr


def test_a_full_gpu_gets_advice(tmp_path):
    _, lines, _ = failure_report(tmp_path, 1, "gpu")
    assert "micro_batch_size" in lines[-2]


def test_a_traceback_is_shown_and_a_users_mistake_is_not(tmp_path):
    assert "[rank 1] ValueError: a bug" in failure_report(tmp_path, 1, "bug")[2]
    assert "[rank 1]" not in failure_report(tmp_path, 1, "data")[2]


def test_the_words_of_a_rank_without_exception_are_shown(tmp_path):
    _, lines, stderr = failure_report(tmp_path, 1, "print")
    assert "[rank 1] a library gave up" in stderr
    assert lines[0].endswith("ended with exit code 3: a library gave up")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("deaf", "DataError: a file is gone"),
        ("late", "DataError: the cause, told late"),
        ("lazy", "DataError: it hangs in its own end"),
        ("finish", "ended with exit code 0"),
    ],
)
def test_ranks_that_hear_nothing_or_too_early_do_not_mislead(tmp_path, how, message):
    code, lines, _ = failure_report(tmp_path, 1, how)  # and it returns: the ranks would sleep for ten minutes
    assert f"rank 1 ({os.uname().nodename}), step 812, phase backward: {message}" in lines[0]
    assert code != 0


def test_ranks_that_end_well_leave_nothing(tmp_path):
    script = tmp_path / "well.py"
    script.write_text("import os; print('rank', os.environ['RANK'], os.environ['OMP_NUM_THREADS'])")
    process = launcher(tmp_path / "ranks", 0, "", script)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    assert stdout.startswith("rank 0 ")
    assert stdout.count("rank") == 1
    assert not (tmp_path / "ranks").exists()


def test_warnings_of_all_ranks_reach_the_terminal_once_and_with_their_number(tmp_path):
    process = launcher(tmp_path / "ranks", 0, "warn")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    said = sorted(line.partition(" ")[2] for line in stderr.splitlines())
    assert said[:2] == ["a disk is slow", "as always"]  # of rank 0
    assert said[2:] in (["rank 1: a disk is slow"], ["rank 2: a disk is slow"])


@pytest.mark.parametrize("how", ["raise", "destroy", "kill", "exit"])
def test_the_errors_of_gloo_do_not_mislead(tmp_path, how):
    _, lines, _ = failure_report(tmp_path, 1, how, RANK.with_name("rank_on_gloo.py"), python())
    assert lines[0].startswith(f"groundup: first failure: rank 1 ({os.uname().nodename}), step 20, ")


def all_have(folder, suffix):
    """Waits until each rank has made its file."""
    while sum(path.exists() for path in (folder / f"{rank}.{suffix}" for rank in range(3))) < 3:
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@START
def test_a_signal_is_passed_on_once_and_the_ranks_end_by_themselves(tmp_path, number, code, start):
    process = launcher(tmp_path, 0, "obey", code=start)
    all_have(tmp_path, "ready")
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert "first failure" not in stderr
    assert stderr.count("\nInterrupted: stopped after step 5") == 1  # of rank 0 alone
    assert [(tmp_path / f"{rank}.told").read_text() for rank in range(3)] == [number.name + "\n"] * 3


@START
def test_the_second_ctrl_c_kills(tmp_path, start):
    process = launcher(tmp_path, 0, "ignore", code=start)
    all_have(tmp_path, "ready")
    process.send_signal(signal.SIGINT)
    all_have(tmp_path, "told")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
@START
def test_no_rank_outlives_a_killed_launcher(tmp_path, start):
    process = launcher(tmp_path, 0, "ignore", code=start)
    all_have(tmp_path, "ready")
    process.kill()
    process.communicate(timeout=60)
    for rank in range(3):
        with (tmp_path / f"{rank}.alive").open() as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)  # waits for the rank's end, or for pytest's timeout


FORK = """
import os, signal, sys, tempfile, threading
from pathlib import Path
from groundup import __main__ as program
from groundup.launch import launcher

def life():
    assert os.getsid(0) == os.getpid()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert sys.argv[1:] == ["some", "words"]
    assert os.environ["OMP_NUM_THREADS"] == str(sys.modules["torch"].get_num_threads()) == "3"
    assert os.fstat(opened.fileno()).st_rdev == os.stat(os.devnull).st_rdev
    assert sys.stdin.read() == ("for rank 0" if os.environ["RANK"] == "0" else "")
    assert "colorsys" in sys.modules
    print("rank", os.environ["RANK"])
    (folder / os.environ["RANK"]).touch()
    sys.exit("its last word" if os.environ["RANK"] == "1" else 0)

program.main = life
temporary = tempfile.TemporaryDirectory()
folder, opened = Path(temporary.name), open(__file__)
os.environ.pop("OMP_NUM_THREADS")
os.sched_getaffinity = lambda process: range(6)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("the launcher's own", end=" ")
ranks = Path(sys.argv[1])
code = launcher.run_ranks(2, ["some", "words"], modules=["colorsys"], folder=ranks, with_stdin=True)
assert {path.name for path in folder.iterdir()} == {"0", "1"}
opened.read()
print(code)
"""


@FORKS
def test_a_fork_begins_as_a_new_process_does_and_ends_without_the_launchers_end(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FORK)
    words = [python(), str(program), str(tmp_path / "ranks")]
    run = subprocess.run(words, input="for rank 0", capture_output=True, text=True)
    assert run.stdout == "the launcher's own rank 0\n1\n"
    assert run.stderr.endswith(
        f"phase start: ended with exit code 1: its last word\n  It left no exception.\n"
        f"  Its output: {tmp_path / 'ranks' / 'rank-1.log'}\n"
    )
    assert (tmp_path / "ranks" / "rank-1.log").read_text() == "rank 1\nits last word\n"


@FORKS
def test_nothing_is_forked_where_native_threads_run_or_a_gpu_is_there(tmp_path, monkeypatch):
    code = (
        "import torch; from groundup.launch.forked_rank import is_safe_to_fork; before = is_safe_to_fork();"
        "torch.set_num_threads(2); torch.ones(1 << 20).sum(); print(before, is_safe_to_fork())"
    )
    run = subprocess.run([python(), "-c", code], capture_output=True, text=True)
    assert run.stdout == "True False\n", run.stderr
    monkeypatch.setattr("groundup.launch.forked_rank.GPU_FILES", [tmp_path])
    assert not is_safe_to_fork()


def test_groundup_itself_says_it_once(tmp_path):
    code = (
        "import sys; from groundup.launch.launcher import run_ranks;"
        "sys.exit(run_ranks(2, ['tokens', 'inspect', 'nowhere']))"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.returncode == 1
    assert run.stderr.count("nowhere") == 1
    assert run.stderr.startswith("groundup: first failure: rank ")
    assert "DataError: " in run.stderr


SETTINGS = [
    "model.kind=gpt2",
    "model.vocab_size=300",
    "model.max_sequence_length=32",
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.num_heads=2",
    "model.ffn_size=64",
    "num_steps=6",
    "micro_batch_size=2",
    "data.path=nowhere",
    "data.sequence_length=32",
    "optimizer.lr=1e-3",
    "layout.dp=2",
]


@pytest.fixture
def launches(monkeypatch):
    """What `groundup train` would launch."""
    from groundup.launch import launcher

    calls = []
    monkeypatch.setattr(launcher, "run_ranks", lambda *args, **kwargs: calls.append((args, kwargs)) or 42)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_train_launches_the_ranks_of_its_layout_with_its_own_words(tmp_path, launches):
    words = [*SETTINGS, "global_batch_size=4", f"run_dir={tmp_path}"]
    with pytest.raises(SystemExit) as stop:
        run_command(["train", *words])
    assert stop.value.code == 42
    ((arguments, settings),) = launches
    assert arguments == (2, ["train", *words])
    assert (settings["folder"], settings["max_restarts"]) == (tmp_path / "ranks", 0)


def test_train_launches_one_process_where_it_may_restart(tmp_path, launches):
    words = [*SETTINGS, "layout.dp=1", "global_batch_size=4", f"run_dir={tmp_path}"]
    with pytest.raises(SystemExit):
        run_command(["train", *words, "--max-restarts", "3"])
    ((arguments, settings),) = launches
    assert arguments == (1, ["train", *words])
    assert settings["max_restarts"] == 3
    assert settings["newest_step"]() == 0


def test_restarts_are_refused_where_another_launcher_has_the_ranks(tmp_path, launches, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="started by torchrun or srun"):
        run_command(["train", *SETTINGS, f"run_dir={tmp_path}", "--max-restarts", "3"])


def test_the_last_rank_of_torchrun_launches_none(tmp_path, launches, monkeypatch):
    """Where a machine is lost and one rank is left, the layout is refused: torchrun alone starts ranks."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in {**TORCHRUN, **alone, "TORCHELASTIC_RUN_ID": "job"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(FAILURES_DIR, "")  # so that it is unset afterwards
    with pytest.raises(ConfigError, match="dp 2"):
        run_command(["train", *SETTINGS, "global_batch_size=4", f"run_dir={tmp_path}"])
    assert not launches


def test_train_refuses_an_impossible_layout_before_it_launches(tmp_path, launches):
    with pytest.raises(ConfigError, match="global_batch_size"):
        run_command(["train", *SETTINGS, "global_batch_size=2", f"run_dir={tmp_path}"])
    assert not launches


def failure(rank, seconds, message, kind="RuntimeError"):
    return RankFailure(rank=rank, time=seconds, step=1, phase="forward", kind=kind, message=message)


def test_the_loss_of_a_peer_comes_first_only_where_nothing_else_failed():
    lost = failure(0, 1.0, "Connection reset by peer")
    cause = failure(2, 1.5, "loss is nan")
    assert root_cause([lost, cause, failure(1, 1.6, "loss is nan")]) == cause
    assert root_cause([failure(1, 2.0, "Broken pipe"), lost]) == lost
    assert root_cause([failure(1, 2.0, "saved", kind="Interrupted")]) is None


TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29400",
}
BATCH_SHELL = {
    "SLURM_JOB_ID": "1234",
    "SLURM_JOB_NODELIST": "gpu[007-009,12],cpu1",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NTASKS": "9",
    "SLURM_TASKS_PER_NODE": "4(x2),1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
STEP = {
    **BATCH_SHELL,
    "SLURM_PROCID": "8",
    "SLURM_NODEID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "9",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),1",
    "SLURM_STEP_NODELIST": "gpu[007-009]",
}


def test_torchruns_environment():
    assert rank_from_env(TORCHRUN) == RankInfo(5, 1, 8, 4, "node1", 29400)
    assert rank_from_env(TORCHRUN).environment() == TORCHRUN
    assert rank_from_env({**STEP, **TORCHRUN}) == rank_from_env(TORCHRUN)  # torchrun under srun
    assert rank_from_env({"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", **TORCHRUN}) == rank_from_env(TORCHRUN)
    assert rank_from_env({}) is None
    assert rank_from_env({"MASTER_ADDR": "node1", "MASTER_PORT": "1"}) is None
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    assert rank_from_env({**TORCHRUN, **alone}) is None


def test_sruns_environment():
    rank = rank_from_env(STEP)
    assert rank == RankInfo(8, 0, 9, 1, "gpu007", rank.master_port)
    others = rank_from_env({**STEP, "SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NODEID": "0"})
    assert others == RankInfo(3, 3, 9, 4, "gpu007", rank.master_port)
    assert rank_from_env({**STEP, "SLURM_STEP_ID": "1"}).master_port != rank.master_port
    exported = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "5000", "WORLD_SIZE": "9"}  # by the batch script
    assert rank_from_env({**STEP, **exported}) == RankInfo(8, 0, 9, 1, "10.0.0.7", 5000)


@pytest.mark.parametrize(
    ("nodes", "first"), [("a1", "a1"), ("a1,b2", "a1"), ("a[3,5-9]", "a3"), ("x-[010-11].eu,y", "x-010.eu")]
)
def test_the_first_machine_of_a_step(nodes, first):
    assert rank_from_env({**STEP, "SLURM_STEP_NODELIST": nodes}).master_address == first


def test_the_shell_of_a_batch_job_is_no_rank():
    assert rank_from_env(BATCH_SHELL) is None
    assert rank_from_env({**BATCH_SHELL, "SLURM_NTASKS": "1"}) is None
    assert rank_from_env({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None  # srun --pty


@pytest.mark.parametrize("name", TORCHRUN)
def test_half_of_torchruns_environment_is_refused(name):
    with pytest.raises(MachineError, match=f"{name} missing"):
        rank_from_env({key: value for key, value in TORCHRUN.items() if key != name})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({**TORCHRUN, "RANK": "8"}, "RANK=8 of WORLD_SIZE=8"),
        ({**TORCHRUN, "RANK": "first"}, "RANK is 'first'"),
        ({**STEP, "WORLD_SIZE": "16"}, "WORLD_SIZE is 16, but srun started 9"),
        ({key: value for key, value in STEP.items() if key != "SLURM_LOCALID"}, "SLURM_LOCALID missing"),
        ({**STEP, "SLURM_NODEID": "3"}, "SLURM_STEP_TASKS_PER_NODE is missing or too short"),
        ({key: value for key, value in STEP.items() if "NODELIST" not in key}, "SLURM_JOB_NODELIST"),
    ],
)
def test_what_cannot_be_is_refused(change, what):
    with pytest.raises(MachineError, match=what):
        rank_from_env(change)
