"""How long a step of a run takes, before the run begins."""

import dataclasses
import functools
import itertools
import tempfile
import time
from pathlib import Path

import torch

from groundup.core.log import quiet
from groundup.train.config import TrainConfig
from groundup.train.data_loader import read_batch
from groundup.train.prefetch import Prefetch
from groundup.train.setup import build_run
from groundup.train.step import train_step
from groundup.train.threads import Threads, counts_to_try

_FEWEST_STEPS = 3


def seconds_of_step(config: TrainConfig, *, measured_seconds: float = 3.0) -> float:
    """Mean seconds of a step of a run on this machine as it is now; nothing is kept of the steps made for it.

    Args:
        config: Of the run, in one process; the run folder is not touched.
        measured_seconds: Of steps that are counted, three at least. Those before, in which threads are
            chosen, are not.

    Raises:
        GroundupError: As the run itself would.
    """
    with tempfile.TemporaryDirectory() as folder, quiet():
        run = build_run(dataclasses.replace(config, run_dir=Path(folder)))
        read = functools.partial(
            read_batch,
            run.training,
            vocab_size=config.model.vocab_size,
            mask_documents=config.data.mask_documents,
        )
        size = config.global_batch_size
        batches = Prefetch(read, ((number * size, size) for number in itertools.count()), device=run.device)
        threads = Threads(counts_to_try(config, run.mesh, present=torch.get_num_threads()))
        began, steps = time.perf_counter(), -1  # the first step is like no other
        with batches, threads:
            while steps < _FEWEST_STEPS or time.perf_counter() - began < measured_seconds:
                batch = batches.next_batch()
                with threads.step(size):
                    train_step(run.state, batch, config, run.precision, run.mesh)
                steps = 0 if threads.is_trying or steps < 0 else steps + 1
                began = time.perf_counter() if steps == 0 else began
        return (time.perf_counter() - began) / steps
