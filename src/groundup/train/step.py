"""One optimizer step."""

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from groundup.core.errors import TrainingError
from groundup.parallel.device import Precision
from groundup.parallel.dtensor import local
from groundup.parallel.grad_norm import total_norm
from groundup.parallel.mesh import ParallelMesh
from groundup.train.config import TrainConfig
from groundup.train.data_loader import Batch, share_of_tokens
from groundup.train.forward_backward import add_gradients
from groundup.train.objective import LANGUAGE_MODELLING, Objective
from groundup.train.schedules import lr_ratio
from groundup.train.stability.spike_guard import SpikeGuard
from groundup.train.state import TrainState


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The outcome of a step.

    Attributes:
        loss: Mean over targets, or what the objective divides by; a fp32 scalar.
        grad_norm: Before clipping.
        lr: Learning rate of the update.
        skipped: Whether the weights were left unchanged.
        outlier: Why the spike guard flagged the step, or an empty string.
        first_sample: Index in the data of the first sample.
        num_samples: Size of the global batch.
        loss_scale: Factor by which the loss was multiplied.
        figures: Of the objective, by name; fp32 scalars.
    """

    loss: Tensor
    grad_norm: float
    lr: float
    skipped: bool
    outlier: str
    first_sample: int
    num_samples: int
    loss_scale: float
    figures: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


class NotFinite(TrainingError):
    """Gradients are not finite, and neither the loss scale nor a spike guard can deal with it."""

    def __init__(
        self, state: TrainState, num_samples: int, loss: float, grad_norm: float, precision: Precision
    ) -> None:
        self.step = state.step + 1
        self.first_sample, self.num_samples = state.samples, num_samples
        self.loss, self.grad_norm = loss, grad_norm
        self.loss_scale = state.scaler.scale if state.scaler else 1.0
        super().__init__(
            f"the gradient norm is {grad_norm} at loss scale {self.loss_scale:g} (loss {loss:.4g})",
            where=f"step {self.step}, samples {state.samples} to {state.samples + num_samples - 1}",
            fix="Lower optimizer.lr, or lengthen the warm-up"
            + ("" if precision.dtype == torch.float32 else ", or set precision=fp32")
            + "; the last checkpoint is intact.",
        )


def train_step(
    state: TrainState,
    batch: Batch,
    config: TrainConfig,
    precision: Precision,
    mesh: ParallelMesh,
    *,
    objective: Objective = LANGUAGE_MODELLING,
) -> StepResult:
    """Runs forward and backward passes over this rank's share of a global batch, then one update.

    Raises:
        NotFinite: Gradients are not finite at the lowest loss scale; nothing was changed.
    """
    num_samples = batch.num_samples * mesh.dp
    batch = share_of_tokens(batch, mesh.cp_rank, mesh.layout.cp)
    own_counts = torch.tensor([batch.num_targets, objective.denominator(batch)], device=precision.device)
    num_targets, denominator = mesh.sum(own_counts).tolist()
    scale = state.scaler.scale if state.scaler else 1.0
    totals = add_gradients(
        state, batch, config, precision, mesh, scale=scale / denominator, objective=objective
    )
    loss, *figures = totals / denominator

    grad_norm = _unscale_and_clip(state, scale, config.clip_grad_norm, mesh)
    finite = math.isfinite(grad_norm)
    scale_can_fall = state.scaler is not None and state.scaler.scale > config.loss_scale.minimum
    if not finite and not scale_can_fall and state.spike_guard is None:
        raise NotFinite(state, num_samples, float(loss), grad_norm, precision)
    outlier = ""
    if state.spike_guard and (finite or not scale_can_fall):
        outlier = _judge(state.spike_guard, float(loss), grad_norm, mesh)

    _set_rates(state, config)
    skipped = not finite or bool(outlier)
    if not skipped:
        with state.phases.phase("optimizer"):
            state.optimizers.step()
        if state.average:
            state.average.update()
    state.optimizers.zero_grad()
    if state.scaler:
        state.scaler.update(overflow=not finite)
    result = StepResult(
        loss=loss,
        grad_norm=grad_norm,
        lr=state.optimizers.lr,
        skipped=skipped,
        outlier=outlier,
        first_sample=state.samples,
        num_samples=num_samples,
        loss_scale=scale,
        figures=dict(zip(objective.figures, figures, strict=True)),
    )
    state.skipped_steps += skipped
    state.step += 1
    state.samples += num_samples
    state.updated_samples += 0 if skipped else num_samples
    state.tokens += num_targets
    return result


def _schedule_position(state: TrainState, config: TrainConfig) -> float:
    """Where the next update is in the schedules; a skipped step advances none of them: Megatron-LM's rule."""
    if config.schedule_unit == "samples":
        return state.updated_samples
    return state.step - state.skipped_steps + 1


def lr_ratio_of_next(state: TrainState, config: TrainConfig) -> float:
    """Returns the learning rate of the next update over its peak."""
    position = _schedule_position(state, config)
    return lr_ratio(config.schedule, position, warmup=config.warmup_length, horizon=config.horizon)


def _set_rates(state: TrainState, config: TrainConfig) -> None:
    state.optimizers.set_rates(
        lr_ratio=lr_ratio_of_next(state, config),
        progress=min(1.0, _schedule_position(state, config) / config.whole_length),
    )


def _judge(guard: SpikeGuard, loss: float, grad_norm: float, mesh: ParallelMesh) -> str:
    """Returns why a step is an outlier, the same on all ranks; the guard remembers a normal one."""
    reason = guard.reason(loss, grad_norm)
    if mesh.any(bool(reason)):
        return reason or "another rank found it an outlier"
    guard.accept(loss, grad_norm)
    return ""


def _unscale_and_clip(state: TrainState, scale: float, max_norm: float, mesh: ParallelMesh) -> float:
    """Divides gradients by the loss scale and clips their global norm; returns the norm before clipping."""
    gradients = {
        name: parameter.grad
        for name, parameter in state.model.named_parameters()
        if parameter.grad is not None
    }
    counted = [gradient for name, gradient in gradients.items() if name not in state.copies]
    norm = total_norm(counted, mesh.stages) / scale
    ratio = 1.0 / scale
    if max_norm > 0 and norm > max_norm:
        ratio *= max_norm / (norm + 1e-6)
    if ratio != 1.0 and math.isfinite(norm):
        # What each rank holds of them: DTensor's rule for the list takes a second to find.
        torch._foreach_mul_([local(gradient) for gradient in gradients.values()], ratio)
    return norm
