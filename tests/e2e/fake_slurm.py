"""Stands for sbatch, srun, scontrol and scancel, by its name: enough of them for deploy/slurm here."""

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


def sbatch(words):
    """Runs a job, or all of an array at once, to its end; then it prints its number, unless it failed."""
    begin = next(number for number, word in enumerate(words) if not word.startswith("--"))
    options = dict(word[2:].partition("=")[::2] for word in words[:begin])
    kind, _, before = options.get("dependency", "").rpartition(":")
    assert not before or (kind == "afterok" and (state / f"job-{before}").is_file()), options
    first, _, last = options.get("array", "").partition("-")
    tasks = range(int(first), int(last) + 1) if first else [None]
    shares = [
        {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": str(len(tasks))} if first else {}
        for task in tasks
    ]
    with (state / "log").open("a") as log:
        words = ["bash", *words[begin:]]
        jobs = [subprocess.Popen(words, env={**os.environ, **one}, stdout=log, stderr=log) for one in shares]
        if sum(job.wait() != 0 for job in jobs):
            sys.exit("the job failed")
    number = len(list(state.glob("job-*"))) + 1
    (state / f"job-{number}").touch()
    print(number)


match Path(sys.argv[0]).name, sys.argv[1:]:
    case "srun", words:
        srun(words)
    case "sbatch", words:
        sbatch(words)
    case "scontrol", ["show", "hostnames", _]:
        print("127.0.0.1\nnode2")
    case "scancel", ["--signal=TERM", _]:
        os.kill(int((state / "srun").read_text()), signal.SIGTERM)
    case name, words:
        sys.exit(f"{name} {words} is not played")
