"""The most memory that a rank holds in a step, by class, from counts alone.

A step is followed through the moments that can be its highest: the end of the forward pass, the loss, the
backward pass of the last layer and of the first, that of the embedding, and the update. Each is a sum of what
is alive then; weights, gradients and state are fp32, unless the optimizer says otherwise.

What our code holds and a formula of a paper would not have:

- autocast keeps a copy of each matrix in 16 bits, for every micro-batch whose backward pass is to come, where
  layers keep all activations; where they recompute, of all layers until the end of the forward pass;
- FSDP2 gathers weights in fp32 under any ZeRO stage, and copies them even where nothing is sharded;
- the loss makes both its gradients in the forward pass, from 2,048 tokens' logits at a time;
- PyTorch's pipelines allocate a buffer for each border and micro-batch at their start.

What it leaves out: the CUDA context and NCCL's buffers (0.5 to 1.5 GiB a GPU), fragmentation, kernels'
scratch, torch.compile, which keeps less, and validation, which keeps no more.
"""

import dataclasses
import functools
from collections.abc import Iterator

from groundup.models import ModelConfig
from groundup.parallel.activation_checkpointing import Recompute
from groundup.parallel.layout import Layout, stages_of_rank
from groundup.parallel.pipeline_parallel import layers_of_stages
from groundup.plan.head_memory import final_hidden, final_norm, loss_memory
from groundup.plan.layer_memory import FP32, LayerMemory, MicroBatch, layer_memory
from groundup.plan.part_counts import Held, head_of, held_of
from groundup.train.adamw import AdamW
from groundup.train.muon import Muon
from groundup.train.optim import Optimizer

CLASSES = ("weights", "weight copies", "gradients", "optimizer", "activations", "logits", "buffers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """What decides the memory of a step.

    Attributes:
        layout: With ``dp`` and ``shard`` resolved.
        num_micro_batches: Of a rank, in a step.
        averages: Whether a moving average of the weights is kept.
    """

    model: ModelConfig
    optimizer: Optimizer
    layout: Layout
    recompute: Recompute
    batch: MicroBatch
    num_micro_batches: int
    averages: bool = False


@dataclasses.dataclass(frozen=True)
class RankMemory:
    """Bytes that a rank holds at the highest moment of a step.

    Attributes:
        rank: Of the pipeline.
        moment: When.
        by_class: Names of ``CLASSES`` -> bytes.
        parameters: Numbers of the rank's weights, without sharding.
    """

    rank: int
    moment: str
    by_class: dict[str, int]
    parameters: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.by_class.values())


def memory_of_ranks(step: Step) -> list[RankMemory]:
    """Counts the memory of each rank of a pipeline; other ranks hold as much as one of these."""
    return [Rank(step, rank).memory() for rank in range(step.layout.pp)]


def highest(step: Step) -> RankMemory:
    """Returns the memory of the rank with the most of it."""
    return max(memory_of_ranks(step), key=lambda one: one.total)


@functools.lru_cache(maxsize=256)
def _layers_of_stages(model: ModelConfig, layout: Layout) -> list[range]:
    return layers_of_stages(model, layout)


def layers_of_ranks(model: ModelConfig, layout: Layout) -> list[list[range]]:
    """Lists the layers of each stage of each rank of the pipeline; the last stage is one of the last rank."""
    if layout.pp == 1:
        return [[range(model.num_layers)]]
    alike = dataclasses.replace(Layout(), pp=layout.pp, pipeline=layout.pipeline)
    stages = _layers_of_stages(model, alike)
    return [
        [stages[stage] for stage in stages_of_rank(layout.pipeline, layout.pp, rank)]
        for rank in range(layout.pp)
    ]


class Rank:
    """A rank of the pipeline, or the only one."""

    def __init__(self, step: Step, rank: int) -> None:
        self.step, self.rank = step, rank
        layout, model = step.layout, step.model
        stages = layers_of_ranks(model, layout)[rank]
        self.stages = stages_of_rank(layout.pipeline, layout.pp, rank) if layout.pp > 1 else [0]
        self.has_embedding, self.has_head = rank == 0, rank == layout.pp - 1
        self.of_stage = [len(layers) for layers in stages]
        self.layers = [layer for layers in stages for layer in layers]
        self.replicas = layout.dp * layout.cp
        self.shard = layout.shard * layout.cp if layout.zero else 1
        self.local, self.own = self._held(1), self._held(self.shard)
        self.layer_local = self._held_of("layer", 1)
        self.layer: LayerMemory = layer_memory(model, step.batch)
        self.layers_in_flight, self.stages_in_flight = self._in_flight()
        self.in_flight = self.layers_in_flight / len(
            self.layers
        )  # micro-batches, in all of the rank's layers

    def memory(self) -> RankMemory:
        """Returns the highest of the moments."""
        weights = FP32 * self.own.weights
        state = self.own.state_bytes + weights * self.step.averages
        moments = {
            name: dict(zip(CLASSES, (weights, copies, gradients, state, *others), strict=True))
            for name, copies, gradients, *others in self._moments()
        }
        name = max(moments, key=lambda key: sum(moments[key].values()))
        return RankMemory(self.rank, name, moments[name], self.local.weights)

    def _held_of(self, where: str, shard: int) -> Held:
        return held_of(where, self.step.model, self.step.optimizer, self.step.layout.tp, shard)

    def _held(self, shard: int) -> Held:
        layer = self._held_of("layer", shard)
        parts = [
            *([self._held_of("embed", shard)] * self.has_embedding),
            *([self._held_of("head", shard)] * self.has_head),
        ]
        weights = len(self.layers) * layer.weights + sum(part.weights for part in parts)
        state = len(self.layers) * layer.state_bytes + sum(part.state_bytes for part in parts)
        if self.has_head and self.step.model.tied_embedding and self.step.layout.pp > 1:
            copy = -(-head_of(self.step.model, self.step.layout.tp) // shard)
            embed = self._held_of("embed", shard)
            weights, state = weights + copy, state + copy * embed.state_bytes // embed.weights
        return Held(weights, len(self.layers) * layer.matrices, state)

    def _in_flight(self) -> tuple[int, int]:
        """Counts the layers and the stages whose backward pass is to come, each for its micro-batch."""
        layout, number = self.step.layout, self.step.num_micro_batches
        whole = len(self.layers)
        if layout.pp == 1:
            return whole, 1
        if layout.pipeline.schedule != "interleaved":
            waiting = number if layout.pipeline.schedule == "gpipe" else min(number, layout.pp - self.rank)
            return whole * waiting, waiting
        # The order of PyTorch's ScheduleInterleaved1F1B: so many forward passes, then one of each.
        turns, total = len(self.stages), number * len(self.stages)
        in_round = number // max(1, number // layout.pp)
        ahead = min(total, (turns - 1) * in_round + 2 * (layout.pp - 1 - self.rank))
        alive, most = 0, (0, 0)
        for turn in range(total):
            alive += self.of_stage[turn // in_round % turns]
            if turn >= ahead:
                most = max(most, (alive, ahead + 1))
                alive -= self.of_stage[turns - 1 - (turn - ahead) // in_round % turns]
        return max(most, (alive, ahead))

    def _moments(self) -> Iterator[tuple[str, int, int, int, int, int]]:
        """Yields moments with what is alive then: copies, gradients, activations, logits, buffers."""
        step, batch, layer = self.step, self.step.batch, self.layer
        mode, every = step.recompute.mode, step.recompute.every
        stream = layer.input
        recomputed = len([one for one in self.layers if one % every == 0]) if mode != "none" else 0
        plain = len(self.layers) - recomputed
        copies_of_layer = batch.itemsize * self.layer_local.matrices if batch.is_mixed else 0
        waiting = int(self.in_flight * (plain * layer.kept + recomputed * layer.kept_under(mode)))
        waiting += int(self._stage_outputs() * stream)
        if self.has_embedding and step.model.dropout:
            waiting += stream // (FP32 if batch.on_gpu else 1)
        copies = self._gathered() + int(self.in_flight * plain * copies_of_layer)
        buffers, before = self._pipeline_buffers() * stream, self._gradients_before()
        if step.layout.pipeline.schedule == "gpipe" and step.layout.pp > 1:
            before = 0  # no backward pass has been
        hidden = gradients = top = loss = 0
        if self.has_head:
            top, hidden = final_norm(step.model, batch), final_hidden(step.model, batch)
            gradients = FP32 * head_of(step.model, step.layout.tp)
            loss = loss_memory(step.model, batch)
            earlier = self.stages_in_flight // len(self.stages) - 1  # whose losses have made their gradients
            waiting += max(0, earlier) * (top + 2 * hidden + gradients)
        passing = copies + recomputed * copies_of_layer  # of autocast's cache, until the forward pass ends
        yield "forward pass", passing, before, waiting + top + hidden, 0, buffers
        if self.has_head:
            yield "loss", copies, before, waiting + top + hidden, loss, buffers
        again = copies_of_layer if recomputed else 0
        alive = waiting + hidden + (layer.kept - layer.kept_under(mode) if recomputed else 0)
        working = buffers + layer.backward
        yield "backward pass, last layer", copies + again, before + gradients, alive, 0, working
        others = int((self.in_flight - 1) * plain * copies_of_layer) + self._gathered()
        first = layer.kept_under(mode if 0 in (one % every for one in self.layers[:1]) else "none")
        alive -= (plain * layer.kept + recomputed * layer.kept_under(mode)) - first
        late = self._gradients_after(before) + gradients * step.model.tied_embedding * (step.layout.pp == 1)
        working += self._reduction(self.layer_local.weights)
        yield "backward pass, first layer", others + copies_of_layer, late, alive, 0, working
        if self.has_embedding:
            ends = self._held_of("embed", 1).weights
            working = buffers + self._reduction(ends)
            yield "backward pass, embedding", others, late + FP32 * ends, hidden, 0, working
        own = FP32 * (self.own.weights if self.replicas > 1 else self.local.weights)
        yield "update", 0, own, hidden, 0, buffers + self._update()

    def _gathered(self) -> int:
        """Weights that FSDP2 has gathered: all, or under ZeRO 3 the ends, and two layers."""
        if self.replicas == 1:
            return 0
        layers = len(self.layers) * self.layer_local.weights
        if self.step.layout.zero < 3:
            return FP32 * (self.local.weights + self.layer_local.weights * (self.shard > 1))
        return FP32 * (self.local.weights - layers + 2 * self.layer_local.weights)

    def _gradients_before(self) -> int:
        """Gradients of earlier micro-batches."""
        if self.step.num_micro_batches == 1:
            return 0
        return FP32 * (self.own.weights if self.step.layout.zero >= 2 else self.local.weights)

    def _gradients_after(self, before: int) -> int:
        """Gradients when all layers but the first have theirs."""
        if before and self.step.layout.zero < 2:
            return before
        shard = self.shard if self.replicas > 1 else 1
        layers = (len(self.layers) - 1) * self._held_of("layer", shard).weights
        return before or FP32 * (layers + self._held_of("head", shard).weights * self.has_head)

    def _reduction(self, weights: int) -> int:
        """Bytes of the buffer of which gradients are reduced over replicas, and of what comes out."""
        return 2 * FP32 * weights if self.replicas > 1 else 0

    def _stage_outputs(self) -> float:
        """Streams that a rank's stages have sent, and keep for the backward pass."""
        if self.step.layout.pp == 1:
            return 0
        return self.stages_in_flight * (len(self.stages) - self.has_head) / len(self.stages)

    def _pipeline_buffers(self) -> int:
        """Streams for which there are buffers, but for those that wait as a layer's input."""
        if self.step.layout.pp == 1:
            return 0
        stages, number = len(self.stages), self.step.num_micro_batches
        received = (stages - self.has_embedding) * max(0, number - int(self.in_flight))
        return received + (stages - self.has_head) * number

    def _update(self) -> int:
        """Bytes that the optimizer works with."""
        optimizer, on_gpu = self.step.optimizer, self.step.batch.on_gpu
        if isinstance(optimizer, AdamW):
            bucket = 1 << 25 if on_gpu else 1 << 20
            return 4 * FP32 * min(bucket, self.own.weights) if optimizer.state_dtype == "bf16" else 0
        if isinstance(optimizer, Muon):
            stack = 1 << 27 if on_gpu else 1 << 20  # directions, their copy in bf16, and three products
            return (FP32 + 2 * 4) * min(stack, self.own.matrices)
        return 0
