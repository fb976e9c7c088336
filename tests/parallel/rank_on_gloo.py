"""A rank in the midst of gloo's collectives, of which one fails or hangs in one way or another."""

import ctypes
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist

from groundup.launch.env import FAILURES_DIR
from groundup.launch.error_handler import record_failure
from groundup.launch.heartbeat import HeartbeatWriter
from groundup.launch.watchdog import WatchdogConfig, watchdog
from groundup.train.signals import StopSignals

culprit, how, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
os.environ.setdefault(FAILURES_DIR, str(folder))
heartbeat = HeartbeatWriter.from_env()


def misbehave():
    match how:
        case "raise":
            raise ValueError("a bug")
        case "destroy":  # the others learn of it first
            dist.destroy_process_group()
            time.sleep(1)
            raise ValueError("a bug")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.exit(5)
        case "sleep":
            time.sleep(600)
        case "reader":  # as a data reader on a file system that does not answer
            with ThreadPoolExecutor(thread_name_prefix="reader") as readers:
                readers.submit(sleep_in_a_reader).result()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "native":  # Python's lock is held, so that no other thread runs
            ctypes.PyDLL(None).sleep(600)
        case "recv":
            dist.recv(torch.ones(1), src=(dist.get_rank() + 1) % dist.get_world_size())


def sleep_in_a_reader():
    threading.Event().wait(600)


def steps(number, seconds):
    for step in range(1, 10_000_000):
        heartbeat.record(step, "backward")
        dist.all_reduce(torch.ones(1000))
        time.sleep(seconds)
        if step == number and dist.get_rank() == culprit:
            misbehave()


try:
    dist.init_process_group("gloo")
    if how in ("raise", "destroy", "kill", "exit"):
        with (
            StopSignals(folder),
            watchdog(WatchdogConfig(), heartbeat),
        ):  # torchrun's SIGTERM may come first
            steps(20, 0)
    else:
        with watchdog(WatchdogConfig(seconds=2), heartbeat):
            steps(40, 0.05)
except Exception as error:
    if not record_failure(error):
        raise
    sys.exit(1)
