"""A model of the time of a step, of pipelines' idle time and of communication that products do not hide.

- a rank's own work is that of ``kernel_time``, of the rank of the pipeline with most of it;
- a pipeline idles for (pp - 1) / v micro-batches with v stages a rank (Narayanan et al. 2021,
  arXiv:2104.04473, section 2.2);
- bytes are those of ``traffic``; ranks of tp are neighbours, then those of cp, dp and pp. A group within a
  machine sends at ``LINK`` of its links' rate. One that spans machines sends no faster than by the network
  cards of its ranks in one machine together, at ``NETWORK`` of theirs: a ring crosses each border once;
- each collective waits for a latency besides: one within a machine, and one more for each other machine;
- weights and gradients of data parallelism travel behind the work of the same pass, those of one layer
  excepted; the other kinds wait for their bytes.
"""

import dataclasses
import math

from groundup.models.count import training_flops_per_token
from groundup.parallel.layout import stages_per_rank
from groundup.plan.kernel_time import Rates, Work, micro_batch_work, update_seconds
from groundup.plan.rank_memory import Step
from groundup.plan.traffic import bytes_sent, collectives_of_layer, data_traffic

LINK = 0.82
"""Share of the links' rate that a ring reaches: 367 of 450 GB/s on eight H200, all-reduce without NVLS
(github.com/stas00/ml-engineering, network/benchmarks/results/all-reduce-8xH200.md)."""

NETWORK = 0.92
"""Share of the network's rate: 377 of 400 GB/s a machine on 4 x 8 B200, 369 on 4 x 8 H200 (the same,
network/README.md)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
    """What a step runs on.

    Attributes:
        rates: Of a device.
        peak: Operations a second on paper, of which ``mfu`` is a share.
        link_gb: GB/s between devices of a machine, in one direction.
        network_gb: GB/s of a device to those of other machines.
        per_machine: Devices of a machine.
        link_latency: Seconds that a collective within a machine takes besides its bytes.
        network_latency: Seconds besides for each further machine that it spans.
    """

    rates: Rates
    peak: float
    link_gb: float
    network_gb: float = 50.0
    per_machine: int = 8
    link_latency: float = 25e-6
    network_latency: float = 12e-6

    def seconds(self, sent: float, calls: float, ranks: int, apart: int) -> float:
        """Returns the time of collectives that send so many bytes a rank.

        Args:
            sent: Bytes of a rank.
            calls: Number of collectives.
            ranks: Of the group.
            apart: Distance of its neighbours; 1 for devices side by side.
        """
        if not sent:
            return 0.0
        rate, latency = LINK * self.link_gb, self.link_latency
        if ranks * apart > self.per_machine:
            beside = max(1, self.per_machine // apart)
            rate = min(rate, NETWORK * beside * self.network_gb)
            latency += self.network_latency * (math.ceil(ranks * apart / self.per_machine) - 1)
        return sent / 1e9 / rate + calls * latency


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step, and what follows of them.

    Attributes:
        work: Of the rank with most of it, in all micro-batches.
        update: Clipping and the optimizer.
        bubble: In which a pipeline idles.
        tensor: Waiting for bytes of tensor parallelism; ``context``, ``pipeline`` and ``data`` likewise.
        hidden: In which bytes travel behind work; no part of the total.
        tokens_per_second: Of all ranks.
        mfu: Share of the peak that the model's own operations reach.
    """

    work: Work
    update: float
    bubble: float
    tensor: float
    context: float
    pipeline: float
    data: float
    hidden: float
    total: float
    tokens_per_second: float
    mfu: float

    @property
    def exposed(self) -> float:
        """Seconds that a step waits for bytes."""
        return self.tensor + self.context + self.pipeline + self.data


def step_time(step: Step, machines: Machines, flops_per_token: float = 0.0) -> StepTime:
    """Returns the time of a step by the model above.

    Args:
        step: What is computed.
        machines: Where.
        flops_per_token: As ``training_flops_per_token`` has it, where it is known already.
    """
    layout, m = step.layout, step.num_micro_batches
    one = micro_batch_work(step, machines.rates)
    work, update = one.both.times(m), update_seconds(step, machines.rates)
    sent = bytes_sent(step)
    passes = m * step.model.num_layers / layout.pp  # of a layer, forward and backward
    calls = collectives_of_layer(step.recompute)
    tensor = machines.seconds(sent["tensor"], calls["tensor"] * passes, layout.tp, 1)
    context = machines.seconds(sent["context"], calls["context"] * passes, layout.cp, layout.tp)
    copies = layout.tp * layout.cp * layout.dp
    pipeline = machines.seconds(sent["pipeline"], 2 * m, 2, copies)
    data, hidden = _data(step, machines, one.forward.total, one.backward.total)
    busy = work.total + tensor + context + pipeline
    bubble = (layout.pp - 1) / stages_per_rank(layout.pipeline) * busy / m
    total = busy + update + bubble + data
    tokens = step.batch.rows * step.batch.length * m * layout.dp
    flops = flops_per_token or training_flops_per_token(step.model, step.batch.length)
    return StepTime(
        work=work,
        update=update,
        bubble=bubble,
        tensor=tensor,
        context=context,
        pipeline=pipeline,
        data=data,
        hidden=hidden,
        total=total,
        tokens_per_second=tokens / total,
        mfu=tokens / total * flops / layout.num_ranks / machines.peak,
    )


def _data(step: Step, machines: Machines, forward: float, backward: float) -> tuple[float, float]:
    """Returns the seconds of data parallelism's bytes that work does not hide, and of those that it does."""
    layout, sent, layers = step.layout, data_traffic(step), step.model.num_layers / step.layout.pp
    shard = layout.shard * layout.cp if layout.zero else 1
    near = (shard, layout.tp)
    far = (layout.dp * layout.cp // shard, layout.tp * shard)
    gathers, reductions = layers * sent.gathers, layers * sent.reductions
    taken = machines.seconds(sent.gathered, gathers, *near)
    behind = min(taken * (1 - 1 / layers), sent.gathers * forward)
    back = sum(
        machines.seconds(size, reductions, *group)
        for size, group in ((sent.again, near), (sent.scattered, near), (sent.summed, far))
    )
    behind += min(back * (1 - 1 / layers), sent.reductions * backward)
    return taken + back - behind, behind
