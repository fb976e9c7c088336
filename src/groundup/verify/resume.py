"""Checks, on the user's own config, that a stopped and resumed run equals one without a stop to the bit."""

import dataclasses
from pathlib import Path

from groundup.checkpoint.compare import Difference, compare
from groundup.checkpoint.megatron.copies import MegatronCopies
from groundup.checkpoint.native.folder import (
    checkpoint_path,
    list_checkpoints,
    point_latest,
    remove_checkpoint,
    step_of,
)
from groundup.core.errors import TrainingError
from groundup.tokens.sampling.splits import tokenizer_of_data
from groundup.train.config import (
    CheckpointConfig,
    TrainConfig,
)
from groundup.train.log_config import LogConfig
from groundup.train.measurements import EvalConfig, SampleConfig, ValidationConfig
from groundup.train.setup import checkpoints_of, require_vocabulary
from groundup.verify.parallel import Launch, read_curve, shrunk, trains


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resumed:
    """Holds a run that was stopped and resumed beside the same run without a stop.

    Attributes:
        stopped_after: Step.
        losses: Step -> loss of the run without a stop, and of that with.
        differences: Tensors of the final checkpoints, weights and moments, that differ.
        num_tensors: That were compared.
    """

    stopped_after: int
    losses: dict[int, tuple[float, float]]
    differences: list[Difference]
    num_tensors: int

    @property
    def is_right(self) -> bool:
        """Whether all losses, weights and moments are equal to the bit."""
        return not self.differences and all(one == other for one, other in self.losses.values())


def verify_resume(
    config: TrainConfig,
    folder: Path,
    *,
    launch: Launch,
    num_steps: int,
    shrink: bool,
) -> Resumed:
    """Trains a few steps without a break, and again with a stop in the middle, on in a new process.

    Optimizer, schedule, precision, dropout, layout and the way of saving are the user's; kernels are
    deterministic.

    Args:
        config: The user's.
        folder: For the copies' run folders.
        launch: Starts the training of a copy.
        num_steps: Steps, 2 at least.
        shrink: See ``verify.parallel.shrunk``.

    Raises:
        ConfigError: The model's vocabulary is not the tokenizer's.
        TrainingError: The run does not train to the end, or does not go on.
    """
    require_vocabulary(config, tokenizer_of_data(config.data))
    stop = num_steps // 2
    data = dataclasses.replace(config.data, split="1", validation={}, test={})
    base = dataclasses.replace(
        config,
        data=data,
        num_steps=num_steps,
        schedule_steps=config.schedule_steps or config.num_steps,
        deterministic=True,
        start=dataclasses.replace(config.start, state=False),
        log=LogConfig(interval=1),
        validation=ValidationConfig(interval=0),
        eval=EvalConfig(),
        sample=SampleConfig(),
        checkpoint=dataclasses.replace(
            config.checkpoint,
            interval=num_steps,
            keep_last=CheckpointConfig().keep_last,
            megatron=MegatronCopies(),
        ),
    )
    if shrink:
        base = shrunk(base)
    whole = dataclasses.replace(base, run_dir=folder / "whole")
    stopped = dataclasses.replace(
        base,
        run_dir=folder / "stopped",
        checkpoint=dataclasses.replace(base.checkpoint, interval=stop, keep_last=num_steps),
    )
    _train(whole, launch, "does not train")
    _train(stopped, launch, "does not train with a checkpoint in the middle")
    checkpoints = checkpoints_of(stopped)
    for checkpoint in list_checkpoints(checkpoints):
        if step_of(checkpoint) > stop:  # as if it had been stopped before
            remove_checkpoint(checkpoint)
    point_latest(checkpoint_path(checkpoints, stop))
    _train(stopped, launch, "does not resume")
    before, after = read_curve(whole.run_dir), read_curve(stopped.run_dir)
    if before.keys() != after.keys():
        raise TrainingError(f"took steps {sorted(after)}, not {sorted(before)}", where=stopped.run_dir)
    found = list(
        compare(checkpoint_path(checkpoints_of(whole), num_steps), checkpoint_path(checkpoints, num_steps))
    )
    return Resumed(
        stopped_after=stop,
        losses={step: (before[step][0], after[step][0]) for step in before},
        differences=[one for one in found if not one.is_equal],
        num_tensors=len(found),
    )


def _train(config: TrainConfig, launch: Launch, problem: str) -> None:
    if not trains(config, launch):
        raise TrainingError(f"the run {problem}", where=config.run_dir)
