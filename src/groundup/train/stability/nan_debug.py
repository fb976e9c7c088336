"""Explains a step whose gradients are not finite: which module was the first, and for which samples.

The step is dumped, and run once more with hooks on every module, which look at its outputs and at the
gradients that come back to them.
"""

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from groundup.core.errors import GroundupError, TrainingError
from groundup.parallel.dtensor import local
from groundup.train.data_loader import Batch, share_of_tokens
from groundup.train.forward_backward import add_micro_batch_gradients
from groundup.train.setup import Run
from groundup.train.stability.step_dump import StepRecord, write_dump
from groundup.train.state import RngStates
from groundup.train.step import NotFinite

_SHOWN = 8


def explained(run: Run, batch: Batch, error: NotFinite, random: RngStates) -> TrainingError:
    """Returns the error with the origin of the numbers that are not finite; collective.

    Args:
        run: As it was before the step.
        batch: This rank's share of the step.
        error: Raised by the step.
        random: RNG states of this rank before the step.
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
    except GroundupError as problem:  # a full disk must not hide the cause
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
    scale = error.loss_scale / max(1, run.learning.objective.denominator(batch) * mesh.num_replicas)
    random.restore()
    mine = find_not_finite(
        run.state.model,
        micro_batches,
        lambda one: add_micro_batch_gradients(
            run.state, one, run.precision, mesh, scale=scale, objective=run.learning.objective
        ),
        first_sample=error.first_sample + mesh.dp_rank * share,
        share=mesh.dp_rank,
        rank=mesh.rank,
    )
    findings = [finding for theirs in mesh.all_gather(mine) for finding in theirs]
    found = describe_findings(
        findings, num_micro_batches=len(micro_batches) * mesh.dp, num_samples=error.num_samples
    )
    return found or (
        "each micro-batch alone is finite when it is run again: their sum or the norm overflows, or the"
        " machine computes differently each time"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """The first numbers that are not finite, in the weights or in a micro-batch.

    Attributes:
        phase: 0 in the weights, 1 forward, 2 backward, 3 in the weights' gradients.
        what: The tensor, in words.
        micro_batch: From 1; 0 for the weights.
        samples: Indices in the data of the samples that have such numbers there; empty where they cannot be
            told apart.
        share: Data-parallel rank whose micro-batch it is.
        rank: The rank that found it.
    """

    phase: int
    what: str
    micro_batch: int = 0
    samples: tuple[int, ...] = ()
    share: int = 0
    rank: int = 0


def find_not_finite(
    model: nn.Module,
    micro_batches: Sequence[Batch],
    add_gradients: Callable[[Batch], Tensor],
    *,
    first_sample: int,
    share: int = 0,
    rank: int = 0,
) -> list[Finding]:
    """Runs micro-batches again, and returns the first finding in the weights and in each micro-batch.

    Collective over the ranks that share the model, each of which checks its own part. The model is left
    without gradients.

    Args:
        model: The whole model, as it was before the step.
        micro_batches: Of this rank.
        add_gradients: Runs both passes of a micro-batch, and returns its loss on this rank.
        first_sample: Index in the data of the first sample of the first micro-batch.
        share: Data-parallel rank of the micro-batches.
        rank: Of this process.
    """
    findings = [
        Finding(phase=0, what=f"{what} of the weight {name}", rank=rank)
        for name, parameter in model.named_parameters()
        if (what := _numbers(parameter))
    ]
    # Compiled layers would not call the hooks of their modules.
    with torch.compiler.set_stance("force_eager"):
        for number, batch in enumerate(micro_batches, start=1):
            size = len(batch.tokens_BT)
            model.zero_grad(set_to_none=True)
            with _watched(model, size) as seen:
                loss = add_gradients(batch)
            if not torch.isfinite(loss) and not any(phase == 1 for phase, _, _ in seen):
                seen.insert(0, (1, "the loss", ()))
            if not seen:
                seen += [
                    (3, f"{what} of the gradient of {name}", ())
                    for name, parameter in model.named_parameters()
                    if parameter.grad is not None and (what := _numbers(parameter.grad))
                ]
            if seen:
                phase, what, rows = seen[0]
                samples = tuple(first_sample + row for row in rows)
                findings.append(
                    Finding(
                        phase=phase,
                        what=what,
                        micro_batch=number,
                        samples=samples,
                        share=share,
                        rank=rank,
                    )
                )
            first_sample += size
    model.zero_grad(set_to_none=True)
    return findings


def describe_findings(findings: Sequence[Finding], *, num_micro_batches: int, num_samples: int) -> str:
    """Returns the findings of all ranks in one sentence, or an empty string."""
    if not findings:
        return ""
    first = min(findings, key=lambda finding: (finding.phase, finding.micro_batch, finding.rank))
    alike = {(finding.share, finding.micro_batch) for finding in findings if finding.micro_batch}
    samples = sorted({sample for finding in findings for sample in finding.samples})
    words = [f"the first not finite is {first.what}"]
    if first.micro_batch:
        words.append(f"(rank {first.rank}, micro-batch {first.micro_batch})")
    if len(samples) == num_samples:
        words.append("for every sample")
    elif samples:
        shown = ", ".join(map(str, samples[:_SHOWN])) + (", ..." if len(samples) > _SHOWN else "")
        words.append(f"for sample{'s' if len(samples) > 1 else ''} {shown}")
    if alike:
        words.append(f"in {len(alike)} of {num_micro_batches} micro-batches")
    return " ".join(words)


@torch.no_grad()
def largest_weight(model: nn.Module) -> tuple[float, str]:
    """Returns the largest finite absolute value among this rank's weights, and its parameter."""
    sizes = [
        (float(torch.nan_to_num(local(parameter), 0.0, 0.0, 0.0).abs().max()), name)
        for name, parameter in model.named_parameters()
        if local(parameter).numel()
    ]
    return max(sizes, default=(0.0, ""))


@contextlib.contextmanager
def _watched(model: nn.Module, size: int) -> Iterator[list[tuple[int, str, tuple[int, ...]]]]:
    """Collects what is not finite in the passes of a micro-batch of ``size`` samples, in order."""
    seen: list[tuple[int, str, tuple[int, ...]]] = []

    def note(phase: int, what: str, tensor: Tensor) -> None:
        with torch.no_grad():
            rows = _rows(tensor.detach())
        if rows:
            seen.append((phase, what, tuple(rows) if len(tensor) == size else ()))

    def forward_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            for tensor in output if isinstance(output, tuple) else (output,):
                if isinstance(tensor, Tensor) and tensor.is_floating_point():
                    note(1, f"the output of {name}", tensor)
                    if tensor.requires_grad:
                        tensor.register_hook(
                            lambda gradient: note(
                                2, f"the gradient that comes back to the output of {name}", gradient
                            )
                        )

        return hook

    handles = [
        module.register_forward_hook(forward_hook(name or "the model"))
        for name, module in model.named_modules()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _rows(tensor: Tensor) -> list[int]:
    """Returns the indices along the first dimension with a number that is not finite."""
    tensor = local(tensor)
    if tensor.ndim == 0:
        return [] if bool(torch.isfinite(tensor)) else [0]
    return (~torch.isfinite(tensor).flatten(1).all(1)).nonzero().flatten().tolist()


@torch.no_grad()
def _numbers(tensor: Tensor) -> str:
    """Returns how many numbers of this rank's part are not finite, in words; empty for none."""
    part = local(tensor)
    count = int((~torch.isfinite(part)).sum())
    return f"{count:,} of {part.numel():,} numbers" if count else ""
