"""The restart policy: retries transient failures, never deterministic ones."""

import dataclasses
import re
import signal
from collections.abc import Callable

from groundup.launch.errors import RankFailure

_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
_VARIES = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")
"""Addresses, times and amounts differ between failures that are the same."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """Attributes: ``message`` says it in one line, empty where nobody asked for restarts."""

    restart: bool
    message: str


class RestartPolicy:
    """Counts the restarts of a run, and decides after each failure.

    Args:
        max_restarts: So many at most.
        newest_step: Returns the step of the newest sound checkpoint; 0 without one.
    """

    def __init__(self, max_restarts: int, newest_step: Callable[[], int]) -> None:
        self.max_restarts = max_restarts
        self.num_restarts = 0
        self._newest_step = newest_step
        self._before: tuple[object, ...] | None = None

    def decide(self, failure: RankFailure, *, oom_kills: int) -> Decision:
        """Returns what to do after a failure.

        Args:
            failure: The root cause of the attempt's end.
            oom_kills: Processes that the kernel killed meanwhile for want of memory.
        """
        if self.max_restarts == 0:
            return Decision(False, "")
        if failure.needs_user:
            return Decision(False, f"not restarting: {failure.kind} is not transient; fix it first")
        if self.num_restarts == self.max_restarts:
            return Decision(False, f"not restarting: all {self.max_restarts} of --max-restarts are used")
        step = self._newest_step()
        # Who kills a rank from outside does not do so because of what the rank was doing.
        from_outside = failure.exit_code in _FROM_OUTSIDE and not oom_kills
        same = None if from_outside else (step, failure.step, failure.phase, _signature(failure))
        if same is not None and same == self._before:
            return Decision(
                False,
                f"not restarting: it failed twice in the same way{_at(failure)}, with no checkpoint between",
            )
        self._before = same
        self.num_restarts += 1
        where = f"from step {step}" if step else "from the beginning"
        what = failure.message.splitlines()[0]
        kind = "" if failure.kind == "exit" else f"{failure.kind}: "
        return Decision(
            True,
            f"restart {self.num_restarts} of {self.max_restarts}: all ranks continue {where},"
            f" after rank {failure.rank} failed{_at(failure)}: {kind}{what}",
        )


def _signature(failure: RankFailure) -> tuple[object, ...]:
    return failure.kind, failure.exit_code, _VARIES.sub("", failure.message)


def _at(failure: RankFailure) -> str:
    return f" in step {failure.step} ({failure.phase})" if failure.step else f" in phase {failure.phase}"
