import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from groundup.core.concatenate import append_range
from groundup.core.errors import MachineError
from groundup.core.executor import local
from groundup.core.executor.run import run_tasks
from groundup.core.executor.tasks import (
    Done,
    Markers,
    ProcessRunner,
    SerialRunner,
    Task,
    pending,
    share_of_rank,
)
from groundup.core.lock import locked


class Square:
    """Writes the square of its input, or does harm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int, report) -> Done:
        if number == 666:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 13:
            raise ValueError("unlucky")
        report(number)
        (self.folder / f"{number}.txt").write_text(str(number**2))
        return Done(files=[f"{number}.txt"], result={"square": number**2})


def tasks(*numbers: int, mark: str = "a") -> list[Task[int]]:
    return [Task(name=f"task-{number}", fingerprint=mark, input=number) for number in numbers]


RUNNERS = [SerialRunner(), ProcessRunner(workers=2)]


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_start_method", lambda: "fork")  # tests are not importable


@pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: runner.kind)
def test_a_rerun_does_only_what_is_missing_or_stale(tmp_path: Path, runner) -> None:
    markers = Markers(tmp_path)
    work = Square(tmp_path)
    all_tasks = tasks(*range(10))
    assert pending(all_tasks, markers) == all_tasks
    reports: list[int] = []
    run_tasks(all_tasks, work, markers, runner, on_report=reports.append)
    assert sorted(reports) == list(range(10))
    assert pending(all_tasks, markers) == []
    assert [markers.result(task) for task in all_tasks] == [{"square": n**2} for n in range(10)]
    (tmp_path / "3.txt").unlink()
    (tmp_path / "4.txt").write_text("16 and more")
    (tmp_path / "task-5.done.json").write_text("{")
    assert [task.input for task in pending(all_tasks, markers)] == [3, 4, 5]
    assert len(pending(tasks(*range(10), mark="b"), markers)) == 10


@pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: runner.kind)
def test_an_error_stops_the_run_and_keeps_what_is_done(tmp_path: Path, runner) -> None:
    markers = Markers(tmp_path)
    some = tasks(1, 2, 13, 4)
    with pytest.raises(ValueError, match="unlucky"):
        run_tasks(some, Square(tmp_path), markers, runner, on_report=lambda report: None)
    assert {1, 2}.isdisjoint(task.input for task in pending(some, markers)[1:])
    assert markers.result(some[2]) is None


def test_a_killed_worker_is_named_with_its_task(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"exit code -9 \(SIGKILL\) in task-666"):
        run_tasks(
            tasks(1, 666), Square(tmp_path), Markers(tmp_path), ProcessRunner(workers=2), on_report=print
        )


def test_each_task_falls_to_one_rank() -> None:
    all_tasks = tasks(*range(11))
    shares = [share_of_rank(all_tasks, rank, 4) for rank in range(4)]
    assert sorted(task.input for share in shares for task in share) == list(range(11))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


HOLD = """
import sys, time
from pathlib import Path
from groundup.core.lock import locked
with locked(Path(sys.argv[1]), what="the build", shared=len(sys.argv) > 2):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline()
        with (
            pytest.raises(MachineError, match=f"process {holder.pid} on .* is doing the build already"),
            locked(path, what="the build"),
        ):
            pass
        holder.kill()
        holder.wait()
        with locked(path, what="the build"):
            pass


def test_shared_locks_put_up_with_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path), "shared"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline()
        with locked(path, what="a share", shared=True):
            pass
        with pytest.raises(MachineError, match="already"), locked(path, what="the whole"):
            pass
        holder.kill()


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from groundup.core.executor.tasks import *\nfrom groundup.core.executor.run import run_tasks\n"
        "class Sleep:\n"
        "    def __call__(self, number, report):\n"
        "        report(os.getpid())\n"
        "        time.sleep(60)\n"
        "run_tasks([Task(name=str(n), fingerprint='', input=n) for n in range(2)], Sleep(),\n"
        "    Markers(Path()), ProcessRunner(workers=2), on_report=lambda pid: print(pid, flush=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tmp_path) as parent:
        assert parent.stdout
        children = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.02)


@pytest.mark.parametrize("has_kernel_copy", [True, False])
def test_append_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_kernel_copy: bool) -> None:
    if not has_kernel_copy:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    content = os.urandom((1 << 21) + 7)
    (tmp_path / "a").write_bytes(content)
    with (tmp_path / "b").open("wb") as target:
        target.write(b"head")
        assert append_range(target, tmp_path / "a") == len(content)
        assert append_range(target, tmp_path / "a", 5, 9) == 4
        target.write(b"tail")
    assert (tmp_path / "b").read_bytes() == b"head" + content + content[5:9] + b"tail"
    with (tmp_path / "b").open("wb") as target, pytest.raises(OSError, match="expected"):
        append_range(target, tmp_path / "a", 0, len(content) + 1)
