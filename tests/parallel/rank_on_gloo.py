"""A rank in the midst of gloo's collectives, of which one fails in one way or another."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from groundup.parallel.failures import progress_note, record_failure

culprit, how = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
try:
    for step in range(1, 10_000_000):
        progress_note(step, "backward")
        dist.all_reduce(torch.ones(1000))
        if step == 20 and dist.get_rank() == culprit:
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
except Exception as error:
    record_failure(error)
    raise
