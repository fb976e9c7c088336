"""A simple model of the time of a step, by which layouts are ranked; it ranks, and does not promise.

- products run at a given share of the peak; recomputing a layer in full adds a third of its products;
- a pipeline idles for (pp - 1) / (m v) of that time, for m micro-batches and v stages a rank (Narayanan et
  al. 2021, arXiv:2104.04473, section 2.2);
- bytes are those of ``traffic``, at the rate of the machine's links where a group of ranks lies within one,
  else at that of the network; ranks of tp are neighbours, then those of cp, dp and pp;
- each collective waits ``Machines.latency`` besides;
- gradients and ZeRO's weights travel behind half of the products' time; the rest is not hidden.
"""

import dataclasses

from groundup.models.count import training_flops_per_token
from groundup.parallel.layout import stages_per_rank
from groundup.plan.rank_memory import Step
from groundup.plan.traffic import bytes_sent

HIDDEN = 0.5
"""Share of the products' time behind which data parallelism's bytes travel."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
    """What a step runs on.

    Attributes:
        flops: Operations a second that a device reaches in products.
        link_gb: GB/s between devices of a machine, in one direction.
        network_gb: GB/s of a device to those of other machines.
        per_machine: Devices of a machine.
        latency: Seconds from the call of a collective to its first byte.
    """

    flops: float
    link_gb: float
    network_gb: float = 50.0
    per_machine: int = 8
    latency: float = 20e-6

    def seconds(self, sent: float, calls: float, extent: int) -> float:
        """Returns the time of calls that send so many bytes within so many neighbouring ranks."""
        rate = self.link_gb if extent <= self.per_machine else self.network_gb
        return sent / 1e9 / rate + calls * self.latency if sent else 0.0


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of a step: products, a pipeline's idle time, and bytes by what they are for."""

    products: float
    bubble: float
    tensor: float
    context: float
    pipeline: float
    data: float

    @property
    def total(self) -> float:
        """Seconds in all."""
        return float(sum(dataclasses.astuple(self)))


def step_time(step: Step, machines: Machines, flops_per_token: float = 0.0) -> StepTime:
    """Returns the time of a step by the model above.

    Args:
        step: What is computed.
        machines: Where.
        flops_per_token: As ``training_flops_per_token`` has it, where it is known already.
    """
    layout, batch = step.layout, step.batch
    flops = flops_per_token or training_flops_per_token(step.model, batch.length)
    again = 1 + (step.recompute.mode == "full") / (3 * step.recompute.every)
    tokens = batch.rows * batch.length * step.num_micro_batches
    products = tokens * flops * again / layout.ranks_of_a_copy / machines.flops
    bubble = (layout.pp - 1) / (step.num_micro_batches * stages_per_rank(layout.pipeline))
    sent = bytes_sent(step)
    near, copies = layout.tp * layout.cp, layout.tp * layout.cp * layout.dp
    passes = step.num_micro_batches * step.model.num_layers / layout.pp  # of a layer, forward and backward
    reductions = {0: 1.0, 1: 2.0, 2: 1.0 + step.num_micro_batches, 3: 3.0 * step.num_micro_batches}[
        layout.zero
    ]
    data = machines.seconds(sent["data"], reductions * step.model.num_layers / layout.pp, copies)
    return StepTime(
        products=products,
        bubble=products * bubble,
        tensor=machines.seconds(sent["tensor"], 8 * passes, layout.tp),
        context=machines.seconds(sent["context"], 2 * passes, near),
        pipeline=machines.seconds(sent["pipeline"], 2 * step.num_micro_batches, copies * layout.pp),
        data=max(0.0, data - HIDDEN * products),
    )
