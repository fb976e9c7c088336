"""Disk that a run's checkpoints take, by the rules by which it keeps and removes them."""

import dataclasses
from pathlib import Path

from groundup.checkpoint.native.folder import checkpoint_path, step_of
from groundup.checkpoint.native.pruning import Keep
from groundup.core.vocabulary import padded_vocab_size
from groundup.plan.layer_memory import FP32
from groundup.plan.part_counts import meta_state
from groundup.train.config import TrainConfig
from groundup.train.stability.spike_guard import RollbackGuard


@dataclasses.dataclass(frozen=True)
class CheckpointDisk:
    """Bytes of a run's checkpoints.

    Attributes:
        one: Of a checkpoint: weights, optimizer state, moving average, at the true vocabulary.
        written: Number that the run writes.
        kept: Number that stay at the end.
        most: Number that are there at once at most: the newest is written before an older one goes.
    """

    one: int
    written: int
    kept: int
    most: int

    @property
    def peak(self) -> int:
        """Bytes at once at most."""
        return self.one * self.most


def checkpoint_disk(config: TrainConfig) -> CheckpointDisk:
    """Counts the checkpoints of a run, which saves at each interval and at its end."""
    back = config.spike_guard.back if isinstance(config.spike_guard, RollbackGuard) else 0
    keep = Keep(last=config.checkpoint.keep_last, every=config.checkpoint.keep_every, back=back)
    interval, last = config.checkpoint.interval, config.num_steps
    steps = [*([0] * (back > 0)), *range(interval, last, interval), last]
    forever = 0
    recent: list[Path] = []
    most = 0
    for step in steps:
        recent.append(checkpoint_path(Path(), step))
        most = max(most, forever + len(recent))
        recent = sorted(keep.sort(recent, lambda _: None).kept)
        # Those that stay for good, and that no later decision looks at, are counted and forgotten.
        while (
            keep.every
            and len(recent) > keep.last
            and step_of(recent[0]) % keep.every == 0
            and step_of(recent[1]) + back <= step + 1
        ):
            recent.pop(0)
            forever += 1
    return CheckpointDisk(checkpoint_bytes(config), len(steps), forever + len(recent), most)


def checkpoint_bytes(config: TrainConfig) -> int:
    """Counts the bytes of the tensors of a checkpoint."""
    model = config.model
    share = model.vocab_size / padded_vocab_size(model.vocab_size)
    total = 0.0
    for one, times, state in meta_state(model, config.optimizer):
        size = state + FP32 * one.value.numel() * (2 if config.ema.decay else 1)
        total += times * size * (share if one.dimensions[0] == "vocab" else 1)
    return round(total)
