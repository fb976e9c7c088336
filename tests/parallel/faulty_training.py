"""`groundup train` with a fault: FAULT="how:rank:step:times", which comes so many times in all attempts.

Ranks that it starts are forks of it, where that is safe; else they run under RANKS_PYTHON.
"""

import functools
import os
import signal
import time
from pathlib import Path

from groundup import __main__ as program
from groundup.core.errors import DataError
from groundup.launch.env import LAUNCHER_PIPE, own_rank, rank_from_env
from groundup.launch.forked_rank import is_safe_to_fork


def comes_true(state) -> bool:
    """Whether now is a time for the fault."""
    _, rank, step, times = os.environ["FAULT"].split(":")
    if own_rank() != int(rank) or state.step + 1 != int(step):
        return False
    marks = Path(os.environ["FAULT_MARKS"])
    marks.mkdir(exist_ok=True)
    done = len(list(marks.iterdir()))
    if done >= int(times):
        return False
    (marks / str(done)).touch()
    return True


def fault():
    import torch

    match os.environ["FAULT"].split(":")[0]:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "bug":
            raise RuntimeError(f"a bug, seen at {time.time()}")
        case "data":
            raise DataError("document 7 is empty", where="corpus.jsonl:8", fix="Drop it.")
        case "sleep":
            time.sleep(600)
        case "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


if LAUNCHER_PIPE not in os.environ and not rank_from_env() and not is_safe_to_fork():
    from groundup.launch import launcher

    python = os.environ["RANKS_PYTHON"]
    launcher.run_ranks = functools.partial(launcher.run_ranks, command=[python, __file__])
if "FAULT" in os.environ:
    from groundup.train import loop

    healthy_step = loop.train_step

    def step(state, *arguments, **settings):
        if comes_true(state):
            fault()
        return healthy_step(state, *arguments, **settings)

    loop.train_step = step
program.main()
