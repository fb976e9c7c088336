"""Learning-rate schedules after the warm-up.

A schedule joins by one file and one member of ``LrSchedule``.
"""

from typing import Annotated

from groundup.core.config import ByKind
from groundup.train.schedules.constant import Constant
from groundup.train.schedules.cosine import Cosine
from groundup.train.schedules.linear import Linear
from groundup.train.schedules.wsd import Wsd

LrSchedule = Annotated[Cosine | Linear | Constant | Wsd, ByKind]


def lr_ratio(schedule: LrSchedule, step: int, *, warmup_steps: float, horizon_steps: int) -> float:
    """Returns the learning rate over its peak for the ``step``-th update, counted from 1.

    It climbs linearly to 1 at ``warmup_steps``, then follows the schedule to ``horizon_steps`` and stays
    at the schedule's last value after it.
    """
    if step < warmup_steps:
        return step / warmup_steps
    span = horizon_steps - warmup_steps
    progress = min(1.0, (step - warmup_steps) / span) if span > 0 else 1.0
    return schedule.after_warmup(progress)
