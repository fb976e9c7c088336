"""Stands for srun, scontrol and scancel, by its name: enough of them for deploy/slurm on one machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

state = Path(os.environ["FAKE_SLURM"])


def srun(words):
    begin = next(number for number, word in enumerate(words) if not word.startswith("--"))
    options = words[:begin]
    number = int(os.environ["SLURM_NTASKS"])
    nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
    here = number // nodes
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(number), "SLURM_STEP_NODELIST": "127.0.0.1"}
    step["SLURM_STEP_TASKS_PER_NODE"] = ",".join([str(here)] * nodes)
    tasks = []
    for task in range(number):
        place = {
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task % here),
            "SLURM_NODEID": str(task // here),
        }
        tasks.append(subprocess.Popen(words[begin:], env={**os.environ, **step, **place}))

    def tell(number, frame=None):
        for task in tasks:
            task.send_signal(number)

    signal.signal(signal.SIGTERM, tell)
    (state / "srun").write_text(str(os.getpid()))
    while any(task.poll() is None for task in tasks):
        if "--kill-on-bad-exit=1" in options and any(task.returncode for task in tasks):
            time.sleep(5)
            tell(signal.SIGKILL)
        time.sleep(0.1)
    sys.exit(max(abs(task.returncode) for task in tasks))


match Path(sys.argv[0]).name, sys.argv[1:]:
    case "srun", words:
        srun(words)
    case "scontrol", ["show", "hostnames", _]:
        print("127.0.0.1\nnode2")
    case "scancel", ["--signal=TERM", _]:
        os.kill(int((state / "srun").read_text()), signal.SIGTERM)
    case name, words:
        sys.exit(f"{name} {words} is not played")
