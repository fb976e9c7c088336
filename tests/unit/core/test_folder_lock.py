"""One process works in a folder at a time."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from groundup.core.errors import MachineError
from groundup.core.files import write_json
from groundup.core.folder_lock import Holder, locked_folder, require_unlocked

HOLD = """
import sys
from pathlib import Path
from groundup.core.folder_lock import locked_folder
with locked_folder(Path(sys.argv[1]), doing="training"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held_by_another(folder: Path):
    """Another process that holds a folder until it is ended."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def named(folder: Path) -> Holder:
    return Holder(**json.loads((folder / "lock.json").read_text()))


def leave(folder: Path, **changes) -> None:
    """The name of a holder."""
    folder.mkdir(exist_ok=True)
    holder = dataclasses.replace(Holder.this_process("training"), **changes)
    write_json(folder / "lock.json", dataclasses.asdict(holder))


def test_a_living_holder_is_named_with_its_start(tmp_path) -> None:
    folder = tmp_path / "run"
    with held_by_another(folder) as process:
        holder = named(folder)
        assert holder.process == process.pid
        with pytest.raises(MachineError) as refused, locked_folder(folder, doing="training"):
            pass
        said = f"process {process.pid} on {holder.host} is training in this folder since {holder.since}"
        assert said in str(refused.value)
        with pytest.raises(MachineError, match=f"process {process.pid} "):
            require_unlocked(folder)


def test_the_kernel_refuses_even_where_the_holder_is_not_named(tmp_path) -> None:
    with held_by_another(tmp_path) as process:
        (tmp_path / "lock.json").unlink()
        refused = pytest.raises(MachineError, match=f"process {process.pid} on")
        with refused, locked_folder(tmp_path, doing="training"):
            pass


def test_what_a_killed_process_held_is_taken_over(tmp_path, caplog) -> None:
    with held_by_another(tmp_path) as process:
        process.kill()
        process.wait()
        with locked_folder(tmp_path, doing="training"):
            assert named(tmp_path).process == os.getpid()
    assert f"process {process.pid}" in caplog.text
    assert "is gone" in caplog.text
    assert not (tmp_path / "lock.json").exists()


def test_a_process_does_not_get_its_own_folder_twice(tmp_path) -> None:
    with locked_folder(tmp_path, doing="training"):
        for _ in range(2):
            refused = pytest.raises(MachineError, match=f"process {os.getpid()} on .* is training")
            with refused, locked_folder(tmp_path, doing="training"):
                pass
    with locked_folder(tmp_path, doing="training"):
        pass


def test_a_later_process_of_the_same_number_is_no_holder(tmp_path) -> None:
    leave(tmp_path, started="1")
    with locked_folder(tmp_path, doing="training"):
        assert named(tmp_path).started != "1"


def test_ranks_of_the_same_launch_go_on(tmp_path) -> None:
    with locked_folder(tmp_path, doing="training", launch="job 7"):
        require_unlocked(tmp_path, launch="job 7")
        for other in ("job 8", ""):
            with pytest.raises(MachineError, match="is training"):
                require_unlocked(tmp_path, launch=other)


def test_a_holder_on_another_machine_is_alive_while_it_gives_signs(tmp_path) -> None:
    leave(tmp_path, host="elsewhere", machine="another")
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.05):
            os.utime(tmp_path / "lock.json")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        refused = pytest.raises(MachineError, match="on elsewhere is training in this folder since")
        with refused, locked_folder(tmp_path, doing="training", beat_seconds=0.2):
            pass
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("silent_seconds", [0, 10_000])
def test_a_silent_holder_on_another_machine_is_gone(tmp_path, silent_seconds) -> None:
    leave(tmp_path, host="elsewhere", machine="another")
    path = tmp_path / "lock.json"
    os.utime(path, (0, path.stat().st_mtime - silent_seconds))
    with locked_folder(tmp_path, doing="training", beat_seconds=0.02, stale_seconds=0.1):
        assert named(tmp_path).process == os.getpid()


def test_signs_of_life_are_given(tmp_path) -> None:
    with locked_folder(tmp_path, doing="training", beat_seconds=0.01):
        path = tmp_path / "lock.json"
        os.utime(path, (0, 0))
        while path.stat().st_mtime == 0:  # until the next
            threading.Event().wait(0.01)


@pytest.mark.parametrize("content", ["", "5", "{}", "[1]", '{"process": 1}'])
def test_a_file_that_names_nobody_is_in_nobodys_way(tmp_path, content) -> None:
    (tmp_path / "lock.json").write_text(content)
    with locked_folder(tmp_path, doing="training"):
        assert named(tmp_path).process == os.getpid()


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(MachineError, match="cannot be written")
    with refused, locked_folder(tmp_path / "file/run", doing="training"):
        pass
