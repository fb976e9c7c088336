"""Forward and backward passes of micro-batches, through a whole model or a pipeline."""

import torch
from torch import Tensor

from groundup.models import Model, evaluating
from groundup.parallel.device import Precision
from groundup.parallel.fsdp import set_gradient_sync
from groundup.parallel.mesh import ParallelMesh
from groundup.parallel.pipeline_parallel import Inputs
from groundup.parallel.tensor_parallel import finish_gradients, vocabulary_shard
from groundup.tokens.sampling.collate import Predictions
from groundup.train.config import TrainConfig
from groundup.train.data_loader import Batch, from_predictions, share_of_rows, share_of_tokens
from groundup.train.loss import linear_cross_entropy
from groundup.train.state import TrainState


def add_gradients(
    state: TrainState,
    batch: Batch,
    config: TrainConfig,
    precision: Precision,
    mesh: ParallelMesh,
    *,
    scale: float,
) -> Tensor:
    """Adds the gradients of this rank's share of a global batch to those of the state's parameters.

    They are of ``scale`` times the loss summed over the targets of all ranks. Returns that sum without the
    scale: a fp32 scalar, the same on all ranks.
    """
    total = torch.zeros((), device=precision.device)
    scale *= mesh.num_replicas  # gradients are averaged over replicas

    def scaled_loss(model: Model, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        loss_sum = summed_loss(model, hidden_BTD, targets_BT, precision)
        total.add_(loss_sum.detach())
        return loss_sum * scale

    micro_batches = list(batch.split(config.micro_batch_size))
    if state.pipeline:
        with state.phases.phase("forward-backward"):
            state.pipeline.accumulate(
                inputs_of(batch), batch.targets_BT, num_micro_batches=len(micro_batches), loss=scaled_loss
            )
        state.pipeline.sum_tied_gradients()
    else:
        for number, micro_batch in enumerate(micro_batches, start=1):
            set_gradient_sync(state.model, mesh.layout, is_last=number == len(micro_batches))
            with state.phases.phase("forward"):
                hidden_BTD = _hidden(state.model, micro_batch, precision)
                loss = scaled_loss(state.model, hidden_BTD, micro_batch.targets_BT)
            with state.phases.phase("backward"):
                loss.backward()
    finish_gradients(state.model)
    return mesh.sum(total, over_stages=True)


def add_micro_batch_gradients(
    state: TrainState, batch: Batch, precision: Precision, mesh: ParallelMesh, *, scale: float
) -> Tensor:
    """Adds the gradients of one micro-batch, as ``add_gradients`` does; not for a pipeline.

    Returns the loss summed over this rank's targets, without the scale.
    """
    set_gradient_sync(state.model, mesh.layout, is_last=True)
    loss_sum = summed_loss(state.model, _hidden(state.model, batch, precision), batch.targets_BT, precision)
    (loss_sum * (scale * mesh.num_replicas)).backward()
    finish_gradients(state.model)
    return loss_sum.detach()


def loss_without_gradients(
    state: TrainState, predictions: Predictions, config: TrainConfig, precision: Precision, mesh: ParallelMesh
) -> float:
    """Returns the loss summed over the targets of a batch, of which each rank computes its share.

    Sharded weights are left gathered; see ``parallel.fsdp.without_gathering``.
    """
    total = torch.zeros((), dtype=torch.float64, device=precision.device)
    rows = share_of_rows(from_predictions(predictions), mesh.dp_rank, mesh.dp)
    share = share_of_tokens(rows, mesh.cp_rank, mesh.layout.cp).to(precision.device)
    micro_batches = list(share.split(config.micro_batch_size))

    def finish(model: Model, hidden_BTD: Tensor, number: int) -> None:
        total.add_(summed_loss(model, hidden_BTD, micro_batches[number].targets_BT, precision))

    with torch.no_grad():
        if state.pipeline:
            state.pipeline.forward([inputs_of(micro_batch) for micro_batch in micro_batches], finish)
        else:
            with evaluating(state.model):
                for number, micro_batch in enumerate(micro_batches):
                    finish(state.model, _hidden(state.model, micro_batch, precision), number)
    return float(mesh.sum(total, over_stages=True))


def summed_loss(
    model: Model,
    hidden_BTD: Tensor,
    targets_BT: Tensor,
    precision: Precision,
) -> Tensor:
    """Returns the loss summed over a micro-batch's targets, a fp32 scalar."""
    assert model.head is not None, "the last part of a model has the head"
    head = vocabulary_shard(model.head.weight)
    with precision.autocast():
        return linear_cross_entropy(
            hidden_BTD.flatten(0, 1),
            head.rows_VD,
            targets_BT.flatten(),
            vocab_size=model.config.vocab_size,
            group=head.group,
            vocab_begin=head.vocab_begin,
        )


def _hidden(model: Model, batch: Batch, precision: Precision) -> Tensor:
    with precision.autocast():
        hidden_BTD: Tensor = model(**inputs_of(batch))
    return hidden_BTD


def inputs_of(batch: Batch) -> Inputs:
    """Returns a batch as the arguments of a model."""
    inputs = {
        "tokens_BT": batch.tokens_BT,
        "positions_BT": batch.positions_BT,
        "documents_BT": batch.documents_BT,
    }
    return {name: value for name, value in inputs.items() if value is not None}
