"""Pipeline parallelism: each rank has some of the layers, and micro-batches pass from rank to rank.

The schedules are PyTorch's (``torch.distributed.pipelining``). A stage is a model with some of the layers,
the first with the embedding, the last with final norm and head. All stages of a rank share their layers
with one model, whose parameter names optimizers and checkpoints use.

Shapes: B samples of a rank, T tokens, D model.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from groundup.core.vocabulary import padded_vocab_size
from groundup.models import Model, ModelConfig, build_model, evaluating
from groundup.parallel.dtensor import local
from groundup.parallel.layout import Layout, ranges, split_layers, stages_of_rank, stages_per_rank
from groundup.parallel.mesh import ParallelMesh

_ONE_STAGE = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}

Inputs = dict[str, Any]
"""``tokens_BT``, and optionally ``positions_BT`` and ``documents_BT``, or a ``mask``."""

Loss = Callable[[Model, Tensor, int], Tensor]
"""Takes the last stage, final hidden states and the micro-batch's number; returns what to minimise."""


class Pipeline:
    """This rank's stages.

    Args:
        model: The whole model, on meta or the same on all ranks; left with this rank's layers, and None for
            an end that other ranks have. A tied head on the last stage becomes a copy.
        mesh: Of the run, with several ranks.
        precision: Makes the context of a stage's forward pass.

    Attributes:
        parts: Stage number -> the model with the layers of this stage.
        tied_head: The last stage's copy of a tied embedding, if this rank has it.
    """

    def __init__(
        self,
        model: Model,
        mesh: ParallelMesh,
        precision: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._mesh = mesh
        self._config = model.config
        self._group = mesh.stages
        self._num_stages = mesh.layout.pp * stages_per_rank(mesh.layout.pipeline)
        mine = stages_of_rank(mesh.layout.pipeline, mesh.layout.pp, mesh.pp_rank)
        layers = layers_of_stages(model.config, mesh.layout)
        self.tied_head: nn.Linear | None = None
        self.parts: dict[int, Model] = {}
        if model.config.tied_embedding and self._last in mine:
            assert model.head is not None, "the whole model has its head"
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())
            self.tied_head = model.head
        _drop(model, {str(layer) for stage in mine for layer in layers[stage]}, mine, self._last)
        for stage in mine:
            part = build_model(model.config, device="meta").train(model.training)
            part.embed, part.norm, part.head = model.embed, model.norm, model.head
            part.layers = nn.ModuleDict({str(layer): model.layers[str(layer)] for layer in layers[stage]})
            _drop(part, set(part.layers), [stage], self._last)
            part.forward = _within(precision, part.forward)  # type: ignore[method-assign]
            self.parts[stage] = part
        self._embedding = model.embed
        self._ends = _ranks_of_ends(mesh) if model.config.tied_embedding else None
        self._schedules: dict[tuple[int, torch.Size], Any] = {}
        self._loss: Loss | None = None

    @property
    def _last(self) -> int:
        return self._num_stages - 1

    def accumulate(
        self,
        inputs: Inputs,
        *,
        num_micro_batches: int,
        loss: Loss,
    ) -> None:
        """Adds the gradients of this rank's share of a global batch.

        Args:
            inputs: Of the model; all ranks of the pipeline have the same.
            num_micro_batches: Divides B.
            loss: To be minimised; called on the rank with the last stage only.
        """
        tokens_BT = inputs["tokens_BT"]
        key = num_micro_batches, tokens_BT.shape
        if key not in self._schedules:
            self._schedules[key] = self._schedule(num_micro_batches, tokens_BT)
        self._loss = loss
        arguments = [tokens_BT] if 0 in self.parts else []
        # Schedules divide a tensor of targets: the numbers of micro-batches, which the loss looks up.
        target = torch.arange(num_micro_batches) if self._last in self.parts else None
        self._schedules[key].step(*arguments, target=target, return_outputs=False, **_others(inputs))

    @torch.no_grad()
    def forward(self, micro_batches: Sequence[Inputs], finish: Callable[[Model, Tensor, int], None]) -> None:
        """Runs the forward pass of micro-batches in evaluation mode.

        Args:
            micro_batches: The same on all ranks of the pipeline.
            finish: Called on the rank with the last stage, with the stage, final hidden states and the number
                of each micro-batch.
        """
        pp, waiting = self._mesh.layout.pp, []
        homes = {stage: rank for rank in range(pp) for stage in self._stages_of(rank)}
        streams: dict[int, Tensor] = {}
        for stage in range(self._num_stages):
            if stage not in self.parts:
                continue
            part = self.parts[stage]
            with evaluating(part):
                for number, inputs in enumerate(micro_batches):
                    x = inputs["tokens_BT"]
                    if stage > 0 and homes[stage - 1] == self._mesh.pp_rank:
                        x = streams[number]
                    elif stage > 0:
                        x = self._stream(x)
                        dist.recv(x, group=self._group, group_src=homes[stage - 1], tag=stage)
                    y = streams[number] = part(x, **_others(inputs))
                    if stage == self._last:
                        finish(part, y, number)
                    elif homes[stage + 1] != self._mesh.pp_rank:
                        y = y.contiguous()
                        work = dist.isend(y, group=self._group, group_dst=homes[stage + 1], tag=stage + 1)
                        waiting.append((work, y))
        for work, _ in waiting:
            if work is not None:
                work.wait()

    def sum_tied_gradients(self) -> None:
        """Sums the gradients of embedding and tied head, on both; once before each update."""
        if self._ends is None:
            return
        first = self._embedding.tokens.weight.grad if self._embedding is not None else None
        last = self.tied_head.weight.grad if self.tied_head is not None else None
        if first is not None and last is not None:
            total = local(first).add_(local(last))
            local(last).copy_(total)
        elif (own := first if first is not None else last) is not None:
            dist.all_reduce(local(own), group=self._ends)

    def _schedule(self, num_micro_batches: int, tokens_BT: Tensor) -> Any:
        settings = self._mesh.layout.pipeline
        micro_BT = tokens_BT[: len(tokens_BT) // num_micro_batches]
        stream = self._stream(micro_BT, device="meta").requires_grad_()
        hidden = torch.empty(*micro_BT.shape, self._config.hidden_size, device="meta", requires_grad=True)
        stages = [
            PipelineStage(
                part,
                stage,
                self._num_stages,
                self._mesh.device,
                input_args=micro_BT if stage == 0 else stream,
                output_args=hidden if stage == self._last else stream,
                group=self._group,
            )
            for stage, part in self.parts.items()
        ]

        def loss(hidden_BTD: Tensor, number: Tensor) -> Tensor:
            assert self._loss is not None, "losses are asked for while a step accumulates"
            return self._loss(self.parts[self._last], hidden_BTD, int(number))

        if settings.schedule in _ONE_STAGE:
            return _ONE_STAGE[settings.schedule](
                stages[0], num_micro_batches, loss_fn=loss, scale_grads=False
            )
        return ScheduleInterleaved1F1B(list(stages), num_micro_batches, loss_fn=loss, scale_grads=False)

    def _stream(self, tokens_BT: Tensor, device: torch.device | str | None = None) -> Tensor:
        """Allocates the activations between stages: [B, T / tp, D], in the dtype of the weights."""
        rows, length = tokens_BT.shape
        shape = (rows, length // self._mesh.layout.tp, self._config.hidden_size)
        dtype = next(weight.dtype for part in self.parts.values() for weight in part.parameters())
        return torch.empty(shape, dtype=dtype, device=device or self._mesh.device)

    def _stages_of(self, rank: int) -> list[int]:
        return stages_of_rank(self._mesh.layout.pipeline, self._mesh.layout.pp, rank)


def layers_of_stages(config: ModelConfig, layout: Layout) -> list[range]:
    """Returns the layers of each stage of a layout's pipeline, as configured or balanced by cost.

    Costs are weights of matrix products, at the padded vocabulary; looking up embeddings costs nothing.
    """
    num_stages = layout.pp * stages_per_rank(layout.pipeline)
    if layout.pipeline.layers:
        return ranges(layout.pipeline.layers)
    one = build_model(dataclasses.replace(config, num_layers=1), device="meta").layers["0"]
    return ranges(
        split_layers(
            config.num_layers,
            num_stages,
            layer_cost=sum(parameter.numel() for parameter in one.parameters() if parameter.ndim == 2),
            first_cost=0,
            last_cost=padded_vocab_size(config.vocab_size) * config.hidden_size,
        )
    )


def _within(
    context: Callable[[], contextlib.AbstractContextManager[None]], forward: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """Wraps a forward pass in a context, without its backward pass."""

    @functools.wraps(forward)
    def forward_within(*arguments: Any, **named: Any) -> Tensor:
        with context():
            return forward(*arguments, **named)

    return forward_within


def _drop(model: Model, layers: set[str], stages: Sequence[int], last: int) -> None:
    """Drops the layers that are not named, and the ends that its stages lack."""
    for name in [name for name in model.layers if name not in layers]:
        del model.layers[name]
    if 0 not in stages:
        model.embed = None
    if last not in stages:
        model.norm = model.head = None


def _ranks_of_ends(mesh: ParallelMesh) -> dist.ProcessGroup | None:
    """Returns the group of the first and last rank of this rank's pipeline; None if it is neither."""
    assert mesh.device_mesh is not None, "a pipeline has several ranks"
    pipelines = mesh.device_mesh.mesh.flatten(1).T.tolist()
    mine = None
    for ranks in pipelines:  # every rank makes all groups, in the same order
        group = dist.new_group([ranks[0], ranks[-1]])
        if mesh.rank in (ranks[0], ranks[-1]):
            mine = group
    return mine


def _others(inputs: Inputs) -> Inputs:
    """Returns all but the tokens, with explicit positions: later stages see no tokens to count."""
    tokens_BT = inputs["tokens_BT"]
    positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
    return {
        name: value for name, value in {"positions_BT": positions_BT, **inputs}.items() if name != "tokens_BT"
    }
