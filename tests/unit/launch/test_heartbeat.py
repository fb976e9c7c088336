"""Where ranks are, as others read it; and what is said of a rank that is gone."""

import os
import subprocess
import sys

import pytest

from groundup.launch.errors import Failure, is_gone, read_record, write_record
from groundup.launch.heartbeat import FOLDER_VARIABLE, Place, read_place

RANK = """
import sys
from groundup.launch.heartbeat import beat, here, progress_continues, progress_note
progress_note(7, "validating", is_long=True)
progress_continues()
beat(flush=True)
"""


@pytest.fixture
def place(tmp_path) -> Place:
    """Of a process that has ended without closing anything."""
    environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path)}
    subprocess.run([sys.executable, "-c", RANK + "import os; os._exit(9)"], env=environment, check=False)
    found = read_place(tmp_path, 0)
    assert found is not None
    return found


def test_the_last_place_of_a_rank_outlives_it(place):
    assert (place.step, place.phase, place.notes, place.is_long) == (7, "validating", 2, True)
    assert place.host == os.uname().nodename
    assert place.beat >= place.time > 0
    assert is_gone(place)


def test_a_rank_that_lives_or_is_elsewhere_is_not_gone(place):
    assert not is_gone(Place(process=os.getpid(), host=place.host))
    assert not is_gone(Place(process=place.process, host="elsewhere"))


def test_a_rank_that_left_no_page_has_no_place(tmp_path):
    assert read_place(tmp_path, 3) is None


def test_a_failure_of_another_launch_in_the_same_folder_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    failure = Failure(rank=1, time=1.0, step=3, phase="training", kind="OSError", message="gone")
    write_record(tmp_path, failure)
    assert read_record(tmp_path, 1) == failure
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert read_record(tmp_path, 1) is None
