"""A machine is lost under torchrun: the others go on with fewer ranks, on the same batches."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.parallel.test_restarts import children as children_of
from tests.parallel.test_restarts import curve, finish, said_by, start, train, wait_for_steps
from tests.parallel.test_restarts import data as data  # a fixture
from tests.runs import make_config


def agent(config, port: int, *, is_host: bool) -> "subprocess.Popen[bytes]":
    """One machine's torchrun, which waits a short while only for the other."""
    words = ("-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3")
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=node-loss")
    patience = f"is_host={is_host},last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"
    return start(config, launch=(*words, *meeting, f"--rdzv-conf={patience}"), has_children=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks through /proc")
def test_the_other_machines_go_on_with_the_same_batches(data, tmp_path):
    settings = ("num_steps=150", "checkpoint.interval=10", "optimizer.kind=sgd", "optimizer.lr=0.01")
    code, stderr = train(make_config(data, tmp_path / "alone", *settings))
    assert code == 0, stderr

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = make_config(data, tmp_path / "run", *settings)
    first = agent(config, port, is_host=True)  # where the machines meet
    said = said_by(config).rename(said_by(config).with_suffix(".first"))
    second = agent(config, port, is_host=False)
    try:
        wait_for_steps(config.run_dir, 15, first)
        ranks = children_of(second.pid)
        for process in (second.pid, *ranks):
            os.kill(process, signal.SIGKILL)
        code, _ = finish(config, first)
    finally:
        second.kill()
    stderr = said.read_text()
    assert code == 0, stderr
    assert "2 ranks: dp 2" in stderr
    assert "continuing from" in stderr
    found, expected = curve(config.run_dir), curve(tmp_path / "alone")
    assert found == {step: pytest.approx(values, rel=1e-5) for step, values in expected.items()}
    assert len(found) == 150
