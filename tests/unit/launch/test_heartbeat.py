"""Heartbeats as other processes read them, and failures of other launches."""

import os
import subprocess
import sys

import pytest

from groundup.launch.env import FAILURES_DIR
from groundup.launch.errors import RankFailure, read_failure, write_failure
from groundup.launch.heartbeat import Heartbeat, read_heartbeat

RANK = """
import sys
from groundup.launch.heartbeat import HeartbeatWriter
heartbeat = HeartbeatWriter.from_env()
heartbeat.record(7, "validating", is_long=True)
heartbeat.keep_alive()
heartbeat.beat(flush=True)
"""


@pytest.fixture
def heartbeat(tmp_path) -> Heartbeat:
    """Of a process that has ended without closing anything."""
    environment = {**os.environ, FAILURES_DIR: str(tmp_path)}
    subprocess.run([sys.executable, "-c", RANK + "import os; os._exit(9)"], env=environment, check=False)
    found = read_heartbeat(tmp_path, 0)
    assert found is not None
    return found


def test_the_last_heartbeat_of_a_rank_outlives_it(heartbeat):
    assert (heartbeat.step, heartbeat.phase, heartbeat.num_records, heartbeat.is_long) == (
        7,
        "validating",
        2,
        True,
    )
    assert heartbeat.host == os.uname().nodename
    assert heartbeat.last_beat >= heartbeat.time > 0
    assert heartbeat.has_ended


def test_a_rank_that_lives_or_is_elsewhere_is_not_gone(heartbeat):
    assert not Heartbeat(process=os.getpid(), host=heartbeat.host).has_ended
    assert not Heartbeat(process=heartbeat.process, host="elsewhere").has_ended


def test_a_rank_that_left_no_file_has_no_heartbeat(tmp_path):
    assert read_heartbeat(tmp_path, 3) is None


def test_a_failure_of_another_launch_in_the_same_folder_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    failure = RankFailure(rank=1, time=1.0, step=3, phase="training", kind="OSError", message="gone")
    write_failure(tmp_path, failure)
    assert read_failure(tmp_path, 1) == failure
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert read_failure(tmp_path, 1) is None
