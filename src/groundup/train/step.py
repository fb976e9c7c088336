"""One optimizer step."""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from groundup.core.errors import TrainingError
from groundup.parallel.norm import total_norm
from groundup.parallel.sharding import synchronise_gradients
from groundup.parallel.team import Team
from groundup.parallel.tensor import finish_gradients, vocabulary_shard
from groundup.train.batches import Batch
from groundup.train.config import TrainConfig
from groundup.train.loss import linear_cross_entropy
from groundup.train.precision import Precision
from groundup.train.schedules import lr_ratio
from groundup.train.state import TrainState


@dataclasses.dataclass(frozen=True)
class StepResult:
    """Attributes: ``loss`` is the mean over targets; ``grad_norm`` is before clipping; both fp32 scalars."""

    loss: Tensor
    grad_norm: float
    lr: float
    skipped: bool


def train_step(
    state: TrainState, batch: Batch, config: TrainConfig, precision: Precision, team: Team
) -> StepResult:
    """Forward and backward over the micro-batches of this rank's share of a global batch, then one update.

    Raises:
        TrainingError: Gradients are not finite, and not for a loss scale that could be lowered.
    """
    num_targets = int(team.sum(torch.tensor(batch.num_targets, device=precision.device)))
    scale = state.scaler.scale if state.scaler else 1.0
    total = torch.zeros((), device=precision.device)
    micro_batches = list(batch.split(config.micro_batch_size))
    for number, micro_batch in enumerate(micro_batches, start=1):
        synchronise_gradients(state.model, team.layout, is_last=number == len(micro_batches))
        loss_sum = forward_loss(state, micro_batch, config, precision)
        (loss_sum * (scale * team.dp / num_targets)).backward()  # what ranks have is averaged over dp
        total += loss_sum.detach()
    team.sum(total)
    finish_gradients(state.model)

    parameters = [parameter for parameter in state.model.parameters() if parameter.grad is not None]
    grad_norm = _unscale_and_clip(parameters, scale, config.clip_grad_norm)
    finite = math.isfinite(grad_norm)
    if not finite and (state.scaler is None or state.scaler.scale <= config.loss_scale.minimum):
        raise TrainingError(
            f"the gradient norm is {grad_norm} at loss scale {scale:g}"
            f" (loss {float(total / num_targets):.4g})",
            where=f"step {state.step + 1}, samples {state.samples} to"
            f" {state.samples + config.global_batch_size - 1}",
            fix="Lower optimizer.lr, lengthen the warm-up or set precision=fp32;"
            " the last checkpoint is intact.",
        )

    # A skipped step does not advance the schedule: Megatron-LM's rule.
    update = state.step - state.skipped_steps + 1
    state.optimizers.set_lr_ratio(
        lr_ratio(
            config.schedule, update, warmup_steps=config.warmup_steps, horizon_steps=config.horizon_steps
        )
    )
    if finite:
        state.optimizers.step()
    state.optimizers.zero_grad()
    if state.scaler:
        state.scaler.update(overflow=not finite)
    state.skipped_steps += not finite
    state.step += 1
    state.samples += config.global_batch_size
    state.tokens += num_targets
    return StepResult(total / num_targets, grad_norm, state.optimizers.lr, skipped=not finite)


def forward_loss(state: TrainState, batch: Batch, config: TrainConfig, precision: Precision) -> Tensor:
    """Summed loss over a micro-batch's targets, fp32."""
    with precision.autocast():
        hidden_BTD = state.model(
            batch.tokens_BT, positions_BT=batch.positions_BT, documents_BT=batch.documents_BT
        )
        head = vocabulary_shard(state.model.head.weight)
        return linear_cross_entropy(
            hidden_BTD.flatten(0, 1),
            head.rows_VD,
            batch.targets_BT.flatten(),
            vocab_size=config.model.vocab_size,
            group=head.group,
            vocab_begin=head.vocab_begin,
        )


def _unscale_and_clip(parameters: Sequence[Tensor], scale: float, max_norm: float) -> float:
    """Divides gradients by the loss scale and clips their global norm; returns the norm before clipping."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = total_norm(gradients) / scale
    ratio = 1.0 / scale
    if max_norm > 0 and norm > max_norm:
        ratio *= max_norm / (norm + 1e-6)
    if ratio != 1.0 and math.isfinite(norm):
        torch._foreach_mul_(gradients, ratio)
    return norm
