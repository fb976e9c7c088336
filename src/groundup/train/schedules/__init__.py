"""Learning-rate schedules after the warm-up.

A schedule joins by one file and one member of ``LrSchedule``.
"""

from typing import Annotated

from groundup.core.config import ByKind
from groundup.train.schedules.constant import Constant
from groundup.train.schedules.cosine import Cosine
from groundup.train.schedules.inverse_sqrt import InverseSqrt
from groundup.train.schedules.linear import Linear
from groundup.train.schedules.wsd import Wsd

LrSchedule = Annotated[Cosine | Linear | Constant | Wsd | InverseSqrt, ByKind]


def lr_ratio(schedule: LrSchedule, position: float, *, warmup: float, horizon: float) -> float:
    """Returns the learning rate over its peak at a position in the training.

    It climbs linearly to 1 at ``warmup``, then follows the schedule to ``horizon`` and stays at the
    schedule's last value after it. All three count the same: steps, or samples.
    """
    if position < warmup:
        return position / warmup
    if isinstance(schedule, InverseSqrt):
        return schedule.at(position, warmup) if position <= horizon else schedule.min_ratio
    span = horizon - warmup
    progress = min(1.0, (position - warmup) / span) if span > 0 else 1.0
    return schedule.after_warmup(progress)
