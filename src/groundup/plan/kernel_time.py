"""Time that a rank's own work takes: matrix products, attention, and passes over its memory.

- A product of 2 M N K operations runs at ``SUSTAINED`` of the best rate that products were measured to reach
  on the device, and takes ``KERNEL`` besides: it starts, fills its units, and ends on half-filled waves of
  tiles. That is the curve of efficiency by size.
- Fused attention does two products in the forward pass and five in the backward pass, at ``ATTENTION`` of
  that rate: FlashAttention-2 reaches 225 TFLOP/s on an A100, whose products reach 271, and 370 on an H100,
  whose products reach 795 (Dao 2023, arXiv:2307.08691, section 4.1; Shah et al. 2024, arXiv:2407.08608,
  figure 5); backward, and under a causal mask, less.
- All else moves bytes, at ``MEMORY`` of the memory's rate: what ``layer_memory`` counts as kept is written
  and read in the forward pass and read in the backward pass, where its gradient is written and read.
  Autocast reads weights in fp32 and writes them in 16 bits for each micro-batch, the loss passes over its
  logits, the optimizer over weights, gradients and state.

The constants are the same for all devices and models. ``SUSTAINED``, ``KERNEL`` and ``ATTENTION`` were chosen
once, by the runs of MosaicML's llm-foundry on one machine of A100s or H100s (``benchmarks/plan_scale.py``).
"""

import dataclasses
import math

from groundup.plan.device_table import Accelerator
from groundup.plan.layer_memory import FP32, layer_memory
from groundup.plan.part_counts import head_of, parameters_of
from groundup.plan.rank_memory import Rank, Step, layers_of_ranks

SUSTAINED = 0.8
"""Share of a device's best products that products reach within a step, where power and heat limit them."""

KERNEL = 10e-6
"""Seconds of a product besides those of its operations."""

ATTENTION = 0.5
"""Rate of fused attention over that of products."""

MEMORY = 0.85
"""Share of the memory's rate that passes over large tensors reach."""

LOGIT_PASSES = 5
"""Times that the loss writes or reads each logit, in fp32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device does in a second.

    Attributes:
        flops: Operations of the largest products.
        memory_gb: GB/s of its memory; infinite where ``flops`` counts all work in.
        kernel: Seconds of a product besides those of its operations.
        attention: Rate of attention over that of products.
    """

    flops: float
    memory_gb: float = math.inf
    kernel: float = 0.0
    attention: float = 1.0

    def product(self, rows: int, inner: int, columns: int) -> float:
        """Returns the seconds of a product of that shape."""
        return 2 * rows * inner * columns / self.flops + self.kernel

    def moving(self, size: float) -> float:
        """Returns the seconds in which so many bytes are read or written."""
        return size / (MEMORY * self.memory_gb * 1e9)


def rates_of(device: Accelerator, precision: str) -> Rates:
    """Returns what a device does in a second."""
    return Rates(
        flops=SUSTAINED * device.reached * device.peak_flops(precision),
        memory_gb=device.memory_gb,
        kernel=KERNEL,
        attention=ATTENTION,
    )


@dataclasses.dataclass(frozen=True)
class Work:
    """Seconds of a rank's own work, by what limits them: products, attention, the memory."""

    products: float = 0.0
    attention: float = 0.0
    passes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """Adds times up."""
        return Work(
            self.products + other.products, self.attention + other.attention, self.passes + other.passes
        )

    def times(self, number: float) -> "Work":
        """Returns the work of so many."""
        return Work(number * self.products, number * self.attention, number * self.passes)

    @property
    def total(self) -> float:
        """Seconds in all."""
        return self.products + self.attention + self.passes


@dataclasses.dataclass(frozen=True)
class MicroBatchWork:
    """Work of a rank for one micro-batch: forward, and backward with what it recomputes."""

    forward: Work
    backward: Work

    @property
    def both(self) -> Work:
        """Work of both passes."""
        return self.forward + self.backward


def micro_batch_work(step: Step, rates: Rates) -> MicroBatchWork:
    """Returns the work for one micro-batch of the rank of the pipeline that has most of it."""
    layer, head = _layer(step, rates), _head(step, rates)
    shares = {
        (sum(map(len, layers)), number == step.layout.pp - 1)
        for number, layers in enumerate(layers_of_ranks(step.model, step.layout))
    }
    return max(
        (
            MicroBatchWork(
                layer.forward.times(layers) + head.forward.times(has_head),
                layer.backward.times(layers) + head.backward.times(has_head),
            )
            for layers, has_head in shares
        ),
        key=lambda one: one.both.total,
    )


def update_seconds(step: Step, rates: Rates) -> float:
    """Returns the time of clipping and of the optimizer's step: passes over gradients, weights and state."""
    own = Rank(step, 0).own
    return rates.moving(5 * FP32 * own.weights + 2 * own.state_bytes)  # gradients are read twice


def _layer(step: Step, rates: Rates) -> MicroBatchWork:
    batch = step.batch
    kept = layer_memory(step.model, batch).kept
    cast = (FP32 + batch.itemsize) * Rank(step, 0).layer_local.matrices if batch.is_mixed else 0
    forward = Work(
        products=sum(rates.product(batch.tokens, inner, columns) for columns, inner in _matrices(step)),
        attention=_attention_flops(step) / (rates.flops * rates.attention),
        passes=rates.moving(2 * kept + cast),
    )
    backward = Work(2 * forward.products, 2.5 * forward.attention, rates.moving(3 * kept))
    again = {"none": Work(), "selective": Work(passes=rates.moving(2 * kept)), "full": forward}
    return MicroBatchWork(forward, backward + again[step.recompute.mode].times(1 / step.recompute.every))


def _head(step: Step, rates: Rates) -> MicroBatchWork:
    """Returns the work of the output head and its loss."""
    batch, inner = step.batch, step.model.hidden_size
    vocabulary = head_of(step.model, batch.tp) // inner
    product = rates.product(batch.tokens, inner, vocabulary)
    logits = rates.moving(LOGIT_PASSES * FP32 * batch.tokens * vocabulary)
    # ``linear_cross_entropy`` makes both gradients in the forward pass.
    return MicroBatchWork(Work(products=3 * product, passes=logits), Work())


def _matrices(step: Step) -> list[list[int]]:
    """Lists the shapes of a layer's matrices on a rank of tensor parallelism: outputs, inputs."""
    return [
        one.shape_on_rank(step.model, step.layout.tp)
        for one in parameters_of(step.model)
        if one.where == "layer" and one.value.ndim == 2
    ]


def _attention_flops(step: Step) -> float:
    """Counts the operations of a rank's attention in a forward pass, of which a causal mask leaves half."""
    model, batch = step.model, step.batch
    return 2.0 * batch.tokens * batch.length * model.num_heads * model.head_dim / batch.tp
