"""The spike guard: finds steps whose loss or gradient norm is far above those before, to leave them out.

Two ways out of loss spikes are known to work. AI2 (``SkipStepOptimizer`` of OLMo-core) leaves out the update
of a step whose loss or gradient norm is 6 standard deviations above the mean of the last 128. PaLM (Chowdhery
et al. 2022, arXiv:2204.02311, section 5.1) goes back some 100 steps and jumps over the data from there to
behind the spike, which then did not come again.

The rule here is robust: median and median absolute deviation (MAD) in place of mean and standard deviation,
which the outliers themselves would raise (Leys et al. 2013, doi:10.1016/j.jesp.2013.03.013).
"""

import collections
import math
import statistics
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from groundup.core.config import ByKind, config
from groundup.core.config_class import Positive, PositiveFloat
from groundup.core.errors import TrainingError

_MAD_TO_SIGMA = 1.4826
"""1 / 0.6745: the MAD of normal numbers times this is their standard deviation."""
_LEAST_SPREAD = 1e-3
"""Smallest deviation as a share of the median, so that numbers that hardly differ are no outliers."""


@config
class NoSpikeGuard:
    """Lets every step count, as in any exact reproduction."""

    kind: Literal["none"] = "none"


@config
class SpikeRule:
    """When a step is an outlier.

    Attributes:
        window: How many of the last steps that were no outliers a step is compared with.
        warmup: How many of these are needed before any step is judged; at most ``window``.
        loss_deviations: Standard deviations above the median, estimated from the MAD, from which a loss is
            an outlier.
        grad_norm_deviations: The same for gradient norms, whose tail is heavier: with batches of 1,000 tokens
            of forum posts the largest of 3,000 healthy steps was at 23, the largest loss at 5.
        step_dump: Save each outlier for `groundup replay`; takes 4 bytes a weight on the disk each time.
    """

    kind: str
    window: Positive = 128
    warmup: Positive = 64
    loss_deviations: PositiveFloat = 6.0
    grad_norm_deviations: PositiveFloat = 30.0
    step_dump: bool = False

    def __post_init__(self) -> None:
        """Refuses a rule that would never find an outlier."""
        if self.warmup > self.window:
            raise ValueError(
                f"warmup {self.warmup} is more than window {self.window}: no step would be judged"
            )


@config
class SkipGuard(SpikeRule):
    """Leaves out the update of an outlier.

    Attributes:
        patience: Outliers in a row that end the training: so many are no accident.
    """

    kind: Literal["skip"] = "skip"
    patience: Positive = 8


@config
class RollbackGuard(SpikeRule):
    """Goes back to a checkpoint, and skips the data from there up to and with the outlier.

    Attributes:
        back: Steps before the outlier, at least, of the checkpoint to go back to.
        limit: Rollbacks of a run; the next outlier ends it.
    """

    kind: Literal["rollback"] = "rollback"
    back: Positive = 100
    limit: Positive = 10


SpikeGuardConfig = Annotated[NoSpikeGuard | SkipGuard | RollbackGuard, ByKind]


class SpikeGuard:
    """Judges steps by a rolling window of those before, alike on all ranks.

    Attributes:
        outliers: One record for each outlier of the run: "step", "samples" (the position in the data of its
            first), "reason" and "action".
    """

    def __init__(self, config: SkipGuard | RollbackGuard) -> None:
        self.config = config
        self.outliers: list[dict[str, Any]] = []
        self._losses: collections.deque[float] = collections.deque(maxlen=config.window)
        self._grad_norms: collections.deque[float] = collections.deque(maxlen=config.window)
        self._in_a_row = 0

    def reason(self, loss: float, grad_norm: float) -> str:
        """Returns why a step is an outlier, or an empty string."""
        config = self.config
        return _reason("loss", loss, self._losses, config.loss_deviations, config.warmup) or _reason(
            "gradient norm", grad_norm, self._grad_norms, config.grad_norm_deviations, config.warmup
        )

    def accept(self, loss: float, grad_norm: float) -> None:
        """Adds a normal step to the rolling window."""
        self._losses.append(loss)
        self._grad_norms.append(grad_norm)
        self._in_a_row = 0

    def note(self, *, step: int, samples: int, reason: str, action: str) -> None:
        """Records an outlier.

        Raises:
            TrainingError: There were too many.
        """
        self.outliers.append({"step": step, "samples": samples, "reason": reason, "action": action})
        self._in_a_row += 1
        where = f"step {step}"
        match self.config:
            case SkipGuard(patience=patience) if self._in_a_row >= patience:
                raise TrainingError(
                    f"the last {self._in_a_row} steps were all outliers ({reason}), which is no accident",
                    where=where,
                    fix="If the data has changed its kind, set spike_guard.kind=none for a while. If the"
                    " model has diverged, continue from an older checkpoint with a lower optimizer.lr, or"
                    " with spike_guard.kind=rollback.",
                )
            case RollbackGuard(limit=limit) if self.num_rollbacks > limit:
                raise TrainingError(
                    f"an outlier ({reason}) after spike_guard.limit={limit} rollbacks",
                    where=where,
                    fix="Lower optimizer.lr, look at the data (`groundup tokens trace`),"
                    " or raise spike_guard.limit.",
                )
            case _:
                pass

    @property
    def num_rollbacks(self) -> int:
        """Number of outliers from which the run went back."""
        return sum(outlier["action"] == "rollback" for outlier in self.outliers)

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps, so that a resumed run judges alike."""
        return {
            "losses": list(self._losses),
            "grad_norms": list(self._grad_norms),
            "in_a_row": self._in_a_row,
            "outliers": self.outliers,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continues from a checkpoint's state; the size of the window may have changed."""
        self._losses = collections.deque(state["losses"], maxlen=self.config.window)
        self._grad_norms = collections.deque(state["grad_norms"], maxlen=self.config.window)
        self._in_a_row = state["in_a_row"]
        self.outliers = list(state["outliers"])


def _reason(name: str, value: float, before: collections.deque[float], deviations: float, warmup: int) -> str:
    """Returns why a number is an outlier among those before it, or an empty string."""
    if not math.isfinite(value):
        return f"the {name} is {value}"
    if len(before) < warmup:
        return ""
    median = statistics.median(before)
    spread = _MAD_TO_SIGMA * statistics.median(abs(one - median) for one in before)
    far = (value - median) / max(spread, _LEAST_SPREAD * abs(median))
    if far <= deviations:
        return ""
    return (
        f"the {name} {value:.4g} is {far:.1f} standard deviations above the median {median:.4g} of the last"
        f" {len(before)}"
    )
