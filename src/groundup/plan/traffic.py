"""Bytes that a rank sends in a step, by what they are for: formulas that counts of our own ranks confirm.

``benchmarks/communication.py`` counts every collective of a step, and compares. What a ring sends for an
all-reduce of S bytes over n ranks is 2 S (n - 1) / n, for a gather or scatter half of that. For P bytes of
a rank's weights, m micro-batches, L layers of the rank, and a stream of s bytes a micro-batch in the format
of the products:

- data parallelism and ZeRO 1: 2 P (n - 1) / n once a step; ZeRO 2 the scattered half for each micro-batch
  (Rajbhandari et al. 2019, arXiv:1910.02054, section 7); gradients in bf16 count half;
- ZeRO 3: gathered in the forward and the backward pass and scattered: 3 P (n - 1) / n for each micro-batch;
  what no layer has (embedding, final norm, head) is gathered once for both;
- shards of n ranks, repeated r times (hybrid sharding): those n, and 2 P / n (r - 1) / r of gradients;
- in a pipeline gradients are scattered once a step under any stage, and ZeRO 3 gathers m + 1 times, since
  weights stay between a backward pass and the next;
- tensor with sequence parallelism: 4 gathers and 4 scatters of s for each layer and micro-batch (Korthikanti
  et al. 2022, arXiv:2205.05198, section 4.2.2), one of each for embedding and final norm;
- pipeline: the fp32 stream forward and back for each border and micro-batch, and a tied embedding (or the
  rank's shard of it) all-reduced between the ends, both on average over ranks;
- context: keys and values gathered and their gradients scattered for each layer and micro-batch;
- a layer that recomputes gathers again, but for what its backward pass does not need: in full all but its
  last scatter, selectively the gathers alone.
"""

import dataclasses

from groundup.parallel.activation_checkpointing import Recompute
from groundup.parallel.layout import stages_per_rank
from groundup.plan.layer_memory import FP32
from groundup.plan.part_counts import head_of
from groundup.plan.rank_memory import Rank, Step

KINDS = ("data", "tensor", "pipeline", "context")


@dataclasses.dataclass(frozen=True)
class DataTraffic:
    """Bytes that data parallelism sends in a step, by the pass behind which they travel.

    Attributes:
        gathered: Weights, for the forward pass.
        again: Weights, for the backward pass.
        scattered: Gradients, over the ranks that share a replica.
        summed: Gradients, over replicas.
        gathers: Micro-batches whose forward pass gathers.
        reductions: Micro-batches whose backward pass reduces.
    """

    gathered: float
    again: float
    scattered: float
    summed: float
    gathers: int
    reductions: int

    @property
    def total(self) -> float:
        """Bytes in all."""
        return self.gathered + self.again + self.scattered + self.summed


def data_traffic(step: Step) -> DataTraffic:
    """Returns the bytes that data parallelism and ZeRO send in a step."""
    rank, zero, m = Rank(step, 0), step.layout.zero, step.num_micro_batches
    shard, copies = rank.shard, rank.replicas // rank.shard
    gathers = m if zero == 3 else 1
    reductions = m if zero >= 2 and step.layout.pp == 1 else 1
    weights = FP32 * rank.local.weights
    layers = FP32 * len(rank.layers) * rank.layer_local.weights
    gradients = weights * reductions * (0.5 if step.layout.reduce_dtype == "bf16" else 1.0)
    own = (shard - 1) / shard
    return DataTraffic(
        gathered=own * (weights + (gathers - 1) * (layers if step.layout.pp > 1 else weights)),
        again=own * layers * (reductions if zero == 3 else 0),
        scattered=own * gradients,
        summed=2 * (copies - 1) / copies * gradients / shard,
        gathers=gathers if shard > 1 else 0,
        reductions=reductions if rank.replicas > 1 else 0,
    )


def collectives_of_layer(recompute: Recompute) -> dict[str, float]:
    """Returns how often a layer gathers or scatters the stream or its keys and values, on average."""
    tensor, context = {"none": (0, 0), "selective": (2, 1), "full": (3, 1)}[recompute.mode]
    return {"tensor": 8 + tensor / recompute.every, "context": 2 + context / recompute.every}


def bytes_sent(step: Step) -> dict[str, float]:
    """Returns the bytes that a rank sends in a step, by ``KINDS``."""
    layout, model, batch, m = step.layout, step.model, step.batch, step.num_micro_batches
    tp, pp, cp = layout.tp, layout.pp, layout.cp
    stream = batch.tokens * model.hidden_size
    sent = dict.fromkeys(KINDS, 0.0)
    sent["data"] = data_traffic(step).total
    collectives = collectives_of_layer(step.recompute)
    of_layers = collectives["tensor"] * batch.itemsize * model.num_layers / pp
    ends = (FP32 + batch.itemsize) * 2 / pp
    sent["tensor"] = (of_layers + ends) * m * stream * (tp - 1) / tp
    if pp > 1:
        borders = pp * stages_per_rank(layout.pipeline) - 1
        sent["pipeline"] = 2 * m * FP32 * stream / tp * borders / pp
        shard = Rank(step, 0).shard
        sent["pipeline"] += 2 * FP32 * head_of(model, tp) / shard / pp * model.tied_embedding
    keys = 2 * batch.itemsize * batch.rows * batch.length * model.num_kv_heads * model.head_dim / tp
    sent["context"] = collectives["context"] * model.num_layers / pp * m * keys * (cp - 1) / cp
    return sent
