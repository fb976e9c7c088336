"""Whether a failed run is started again: not for what would come again."""

import dataclasses
import re
import signal
from collections.abc import Callable

from groundup.launch.errors import Failure

_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
_VARIES = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")
"""Addresses, times and amounts differ between failures that are the same."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """Attributes: ``words`` say it in one line, empty where nobody asked for restarts."""

    again: bool
    words: str


class Restarts:
    """Counts the attempts of a run, and decides after each failure.

    Args:
        most: Restarts at most.
        newest_step: Tells the step of the newest sound checkpoint; 0 without one.
    """

    def __init__(self, most: int, newest_step: Callable[[], int]) -> None:
        self.most = most
        self.done = 0
        self._newest_step = newest_step
        self._before: tuple[object, ...] | None = None

    def decide(self, failure: Failure, *, oom_kills: int) -> Decision:
        """What to do after a failure.

        Args:
            failure: The first one of the attempt.
            oom_kills: Processes that the kernel killed meanwhile for want of memory.
        """
        if self.most == 0:
            return Decision(False, "")
        if failure.needs_user:
            return Decision(False, f"not restarted: {failure.kind} would come again until it is mended")
        if self.done == self.most:
            return Decision(False, f"not restarted: --max-restarts {self.most} are used up")
        step = self._newest_step()
        # Who kills a rank from outside does not do so because of what the rank was doing.
        by_chance = failure.exit_code in _FROM_OUTSIDE and not oom_kills
        same = None if by_chance else (step, failure.step, failure.phase, _way(failure))
        if same is not None and same == self._before:
            return Decision(
                False,
                f"not restarted: it failed twice in the same way{_at(failure)}, with no checkpoint between",
            )
        self._before = same
        self.done += 1
        where = f"from step {step}" if step else "from the beginning"
        what = failure.message.splitlines()[0]
        kind = "" if failure.kind == "exit" else f"{failure.kind}: "
        return Decision(
            True,
            f"restart {self.done} of {self.most}: all ranks continue {where}, after rank {failure.rank}"
            f" failed{_at(failure)}: {kind}{what}",
        )


def _way(failure: Failure) -> tuple[object, ...]:
    return failure.kind, failure.exit_code, _VARIES.sub("", failure.message)


def _at(failure: Failure) -> str:
    return f" in step {failure.step} ({failure.phase})" if failure.step else f" in phase {failure.phase}"
