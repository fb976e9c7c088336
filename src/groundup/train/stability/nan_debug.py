"""What is done about a step whose gradients are not finite: it is saved, and run again for the culprit."""

import shlex

from groundup.core.errors import GroundupError, TrainingError
from groundup.train.data_loader import Batch, share_of_tokens
from groundup.train.forward_backward import add_micro_batch_gradients
from groundup.train.rng import RngStates
from groundup.train.setup import Run
from groundup.train.stability.nan_search import describe, find_not_finite, largest_weight
from groundup.train.stability.step_dump import StepRecord, write_dump
from groundup.train.step import NotFinite


def explained(run: Run, batch: Batch, error: NotFinite, random: RngStates) -> TrainingError:
    """The error with all that can be found out; all ranks together.

    Args:
        run: As it was before the step.
        batch: This rank's share of the step.
        error: What the step ended with.
        random: This rank's generators before the step.
    """
    run.heartbeat.record(error.step, "finding what is not finite", is_long=True)
    run.state.optimizers.zero_grad()
    facts = StepRecord(
        step=error.step,
        first_sample=error.first_sample,
        num_samples=error.num_samples,
        loss=error.loss,
        grad_norm=error.grad_norm,
        loss_scale=error.loss_scale,
        reason=error.what,
    )
    try:
        folder = write_dump(run, facts, random)
        saved = f"`groundup replay {shlex.quote(str(folder))}` runs this step again."
    except GroundupError as problem:  # the disk is full, say: what is known must be told all the same
        saved = f"The step could not be saved: {problem}."
    if run.state.pipeline:
        found = (
            "which module was the first is found by the replay, since the layers lie on several ranks here"
        )
    else:
        found = _first_not_finite(run, batch, error, random)
    size, name = max(run.mesh.all_gather(largest_weight(run.state.model)))
    found += f". The largest weight is {size:.3g}, in {name}"
    return TrainingError(f"{error.what}; {found}", where=error.where, fix=f"{saved} {error.fix}")


def _first_not_finite(run: Run, batch: Batch, error: NotFinite, random: RngStates) -> str:
    config, mesh = run.config, run.mesh
    share = error.num_samples // mesh.dp
    micro_batches = list(share_of_tokens(batch, mesh.cp_rank, mesh.layout.cp).split(config.micro_batch_size))
    scale = error.loss_scale / max(1, batch.num_targets * mesh.num_replicas)
    random.restore()
    mine = find_not_finite(
        run.state.model,
        micro_batches,
        lambda one: add_micro_batch_gradients(run.state, one, run.precision, mesh, scale=scale),
        first_sample=error.first_sample + mesh.dp_rank * share,
        share=mesh.dp_rank,
        rank=mesh.rank,
    )
    findings = [finding for theirs in mesh.all_gather(mine) for finding in theirs]
    found = describe(findings, num_micro_batches=len(micro_batches) * mesh.dp, num_samples=error.num_samples)
    return found or (
        "each micro-batch alone is finite when it is run again: their sum or the norm overflows, or the"
        " machine computes differently each time"
    )
