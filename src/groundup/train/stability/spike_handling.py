"""Handles a loss spike: logs it, dumps the step on request, then skips the update or rolls back."""

from typing import Literal

from groundup.checkpoint.native.folder import (
    find_damage,
    find_newest,
    list_checkpoints,
    point_latest,
    remove_checkpoint,
    step_of,
)
from groundup.core.errors import TrainingError
from groundup.core.log import logger
from groundup.train.metrics import Metrics
from groundup.train.setup import Run
from groundup.train.stability.spike_guard import RollbackGuard
from groundup.train.stability.step_dump import StepRecord, write_dump
from groundup.train.state import RngStates
from groundup.train.step import StepResult


def handle_spike(run: Run, metrics: Metrics, result: StepResult, random: RngStates) -> bool:
    """Handles a step that the spike guard flagged and that did not change the weights; collective.

    Args:
        run: As the step left it.
        metrics: Of the run.
        result: Of the step.
        random: This rank's generators before the step.

    Returns:
        Whether the run went back, so that other samples come next.

    Raises:
        TrainingError: There were too many outliers, or there is no checkpoint to go back to.
        MachineError: The disk is full.
    """
    state, guard = run.state, run.state.spike_guard
    assert guard is not None, "nothing else finds outliers"
    step = state.step
    record = StepRecord(
        step=step,
        first_sample=result.first_sample,
        num_samples=result.num_samples,
        loss=float(result.loss),
        grad_norm=result.grad_norm,
        loss_scale=result.loss_scale,
        reason=result.outlier,
    )
    action: Literal["skip", "rollback"] = guard.config.kind
    if guard.config.step_dump:
        run.heartbeat.record(step, "dumping a step", is_long=True)
        logger.warning("step %d is in %s, for `groundup replay`", step, write_dump(run, record, random))
    if isinstance(guard.config, RollbackGuard):
        run.heartbeat.record(step, "going back", is_long=True)
        _go_back(run, guard.config, step)
        metrics.go_back(state.step)
    guard.note(step=step, samples=result.first_sample, reason=result.outlier, action=action)
    metrics.record(
        "outlier",
        state.step,
        outlier_step=step,
        samples=result.first_sample,
        num_samples=result.num_samples,
        loss=record.loss,
        grad_norm=record.grad_norm,
        reason=result.outlier,
        action=action,
    )
    if action == "skip":
        logger.warning("step %d is skipped: %s", step, result.outlier)
        return False
    logger.warning(
        "step %d: %s; back to step %d, and on from sample %d", step, result.outlier, state.step, state.samples
    )
    # Replaces the checkpoint that was restored: a resumed run continues after the skipped data.
    run.save(wait=True, replaces=True)
    return True


def _go_back(run: Run, config: RollbackGuard, step: int) -> None:
    """Restores the newest sound checkpoint that is old enough, but not the position in the data."""
    position = run.state.samples
    run.writer.finish()
    target, _ = find_newest(run.checkpoints_dir, run.mesh, last_step=step - config.back)
    if target is None:
        raise TrainingError(
            f"there is no sound checkpoint of {config.back} steps before or more to go back to",
            where=f"step {step}",
            fix="Lower spike_guard.back or checkpoint.interval.",
        )
    run.state.restore(target, run.config, run.mesh)
    run.state.samples = position
    if run.mesh.is_first:
        point_latest(target)
        for folder in list_checkpoints(run.checkpoints_dir):
            if run.state.step < step_of(folder) <= step and not find_damage(folder):
                remove_checkpoint(folder)  # what is gone back from; damage is left to the user
    run.mesh.barrier()
