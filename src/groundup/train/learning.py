"""How a stage joins the training loop: data, a loss and trainable parameters, as plain values.

``groundup train`` takes ``PRETRAINING``. A stage of ``finetune/`` gives ``train.loop.train`` another
``Learning``; layouts, resume, checkpoints, the spike guard and reports need to know nothing of it.

1. ``open_data`` opens the data, whose ``Split.read(first_sample, count)`` makes a ``Batch`` from an index
   alone. A batch may carry ``extra`` tensors ([B] or [B, T]) and have several rows a sample
   (``rows_per_sample``: 2 for pairs), which are then never parted.
2. ``change_start`` changes the model that the run begins with while it is still on disk (a larger
   vocabulary, a chat template).
3. ``adapters`` are trained instead of the weights, which stay as they begin; checkpoints hold them alone.
4. ``begin`` is called once the weights are there, new or restored, before the first step.
5. ``prepare`` completes each batch of this rank, on its device, with the present weights, when its step
   begins. It must be a pure function of seed, step and weights: resuming calls it again.
6. ``objective`` is the loss.
7. ``encode_prompt`` turns a prompt of ``sample`` into ids, where a model is not simply asked to continue it.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from groundup.train.objective import LANGUAGE_MODELLING, Objective
from groundup.train.run_data import RunData, token_data

if TYPE_CHECKING:
    from groundup.checkpoint.lazy import LazyModel
    from groundup.checkpoint.low_rank import AdapterAbout
    from groundup.models import Model
    from groundup.train.config import TrainConfig
    from groundup.train.data_loader import Batch
    from groundup.train.setup import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapters:
    """Parameters beside frozen ones, which alone are trained.

    Attributes:
        add: Freezes a model and adds them, on meta: after tensor parallelism has cut it, before FSDP.
        fill: Gives them their initial values in a new run.
        about: What checkpoints say of them.
        fact: What is said of them before training.
    """

    add: "Callable[[Model], None]"
    fill: "Callable[[Model], None]"
    about: "AdapterAbout"
    fact: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning:
    """What a run learns, from what, and with which parameters; see the module's docstring."""

    open_data: "Callable[[TrainConfig], RunData]" = token_data
    change_start: "Callable[[LazyModel], LazyModel] | None" = None
    adapters: Adapters | None = None
    begin: "Callable[[Run], None] | None" = None
    prepare: "Callable[[Run, Batch], Batch] | None" = None
    objective: Objective = LANGUAGE_MODELLING
    encode_prompt: "Callable[[Run, str], list[int]] | None" = None


PRETRAINING = Learning()
