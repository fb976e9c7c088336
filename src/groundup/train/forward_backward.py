"""Forward and backward passes of micro-batches, through a whole model or a pipeline."""

import torch
from torch import Tensor

from groundup.models import Model, evaluating
from groundup.parallel.device import Precision
from groundup.parallel.fsdp import set_gradient_sync
from groundup.parallel.mesh import ParallelMesh
from groundup.parallel.pipeline_parallel import Inputs
from groundup.parallel.tensor_parallel import finish_gradients
from groundup.train.config import TrainConfig
from groundup.train.data_loader import Batch, share_of_rows, share_of_tokens
from groundup.train.objective import LANGUAGE_MODELLING, Objective
from groundup.train.state import TrainState


def add_gradients(
    state: TrainState,
    batch: Batch,
    config: TrainConfig,
    precision: Precision,
    mesh: ParallelMesh,
    *,
    scale: float,
    objective: Objective = LANGUAGE_MODELLING,
) -> Tensor:
    """Adds the gradients of this rank's share of a global batch to those of the state's parameters.

    They are of ``scale`` times the loss summed over all ranks. Returns that sum without the scale, and those
    of the objective's figures behind it: fp32 [1 + figures], the same on all ranks.
    """
    totals = torch.zeros(1 + len(objective.figures), device=precision.device)
    scale *= mesh.num_replicas  # gradients are averaged over replicas
    micro_batches = list(batch.split(config.micro_batch_size))

    def scaled_loss(model: Model, hidden_BTD: Tensor, number: int) -> Tensor:
        loss_sum, figures = objective.sums(model, hidden_BTD, micro_batches[number], precision)
        totals.add_(torch.stack((loss_sum.detach(), *figures)))
        return loss_sum * scale

    if state.pipeline:
        with state.phases.phase("forward-backward"):
            state.pipeline.accumulate(
                inputs_of(batch), num_micro_batches=len(micro_batches), loss=scaled_loss
            )
        state.pipeline.sum_tied_gradients()
    else:
        for number, micro_batch in enumerate(micro_batches):
            set_gradient_sync(state.model, mesh.layout, is_last=number == len(micro_batches) - 1)
            with state.phases.phase("forward"):
                hidden_BTD = _hidden(state.model, micro_batch, precision)
                loss = scaled_loss(state.model, hidden_BTD, number)
            with state.phases.phase("backward"):
                loss.backward()
    finish_gradients(state.model)
    return mesh.sum(totals, over_stages=True)


def add_micro_batch_gradients(
    state: TrainState,
    batch: Batch,
    precision: Precision,
    mesh: ParallelMesh,
    *,
    scale: float,
    objective: Objective = LANGUAGE_MODELLING,
) -> Tensor:
    """Adds the gradients of one micro-batch, as ``add_gradients`` does; not for a pipeline.

    Returns this rank's sum of the loss, without the scale.
    """
    set_gradient_sync(state.model, mesh.layout, is_last=True)
    loss_sum, _ = objective.sums(state.model, _hidden(state.model, batch, precision), batch, precision)
    (loss_sum * (scale * mesh.num_replicas)).backward()
    finish_gradients(state.model)
    return loss_sum.detach()


def loss_without_gradients(
    state: TrainState,
    batch: Batch,
    config: TrainConfig,
    precision: Precision,
    mesh: ParallelMesh,
    *,
    objective: Objective = LANGUAGE_MODELLING,
) -> list[float]:
    """Returns the sums of a batch, the loss and the figures, of which each rank computes its share.

    Sharded weights are left gathered; see ``parallel.fsdp.without_gathering``.
    """
    totals = torch.zeros(1 + len(objective.figures), dtype=torch.float64, device=precision.device)
    rows = share_of_rows(batch, mesh.dp_rank, mesh.dp)
    share = share_of_tokens(rows, mesh.cp_rank, mesh.layout.cp).to(precision.device)
    micro_batches = list(share.split(config.micro_batch_size))

    def finish(model: Model, hidden_BTD: Tensor, number: int) -> None:
        loss, figures = objective.sums(model, hidden_BTD, micro_batches[number], precision)
        totals.add_(torch.stack((loss, *figures)))

    with torch.no_grad():
        if state.pipeline:
            state.pipeline.forward([inputs_of(micro_batch) for micro_batch in micro_batches], finish)
        else:
            with evaluating(state.model):
                for number, micro_batch in enumerate(micro_batches):
                    finish(state.model, _hidden(state.model, micro_batch, precision), number)
    found: list[float] = mesh.sum(totals, over_stages=True).tolist()
    return found


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
