"""Bytes that a rank sends in a step, by what they are for: formulas that counts of our own ranks confirm.

``benchmarks/communication.py`` counts every collective of a step, and compares. What a ring sends for an
all-reduce of S bytes over n ranks is 2 S (n - 1) / n, for a gather or scatter half of that. For P bytes of
a rank's weights, m micro-batches, L layers of the rank, and a stream of s bytes a micro-batch in the format
of the products:

- data parallelism and ZeRO 1: 2 P (n - 1) / n once a step; ZeRO 2 the scattered half for each micro-batch
  (Rajbhandari et al. 2019, arXiv:1910.02054, section 7); gradients in bf16 count half;
- ZeRO 3: gathered in the forward and the backward pass and scattered: 3 P (n - 1) / n for each micro-batch;
  what no layer has (embedding, final norm, head) is gathered once for both;
- tensor with sequence parallelism: 4 gathers and 4 scatters of s for each layer and micro-batch (Korthikanti
  et al. 2022, arXiv:2205.05198, section 4.2.2), one of each for embedding and final norm;
- pipeline: the fp32 stream forward and back for each border and micro-batch, and a tied embedding all-reduced
  between the ends, both on average over ranks;
- context: keys and values gathered and their gradients scattered for each layer and micro-batch.
"""

from groundup.plan.layer_memory import FP32
from groundup.plan.part_counts import head_of
from groundup.plan.rank_memory import Rank, Step

KINDS = ("data", "tensor", "pipeline", "context")


def bytes_sent(step: Step) -> dict[str, float]:
    """Returns the bytes that a rank sends in a step, by ``KINDS``."""
    layout, model, batch, m = step.layout, step.model, step.batch, step.num_micro_batches
    tp, pp, cp = layout.tp, layout.pp, layout.cp
    rank = Rank(step, 0)
    stream = batch.tokens * model.hidden_size
    sent = dict.fromkeys(KINDS, 0.0)
    if rank.replicas > 1:
        weights = FP32 * rank.local.weights
        layers = FP32 * len(rank.layers) * rank.layer_local.weights
        scattered = 0.5 if layout.reduce_dtype == "bf16" else 1.0
        share = (rank.replicas - 1) / rank.replicas
        sent["data"] = (
            share
            * {
                0: 2 * scattered * weights,
                1: (1 + scattered) * weights,
                2: (1 + scattered * m) * weights,
                3: (weights + layers + scattered * weights) * m,
            }[layout.zero]
        )
    of_layers = 8 * batch.itemsize * model.num_layers / pp
    ends = (FP32 + batch.itemsize) * 2 / pp
    sent["tensor"] = (of_layers + ends) * m * stream * (tp - 1) / tp
    if pp > 1:
        sent["pipeline"] = 2 * m * FP32 * stream / tp * (pp - 1) / pp
        sent["pipeline"] += 2 * FP32 * head_of(model, tp) / pp * model.tied_embedding
    keys = 2 * batch.itemsize * batch.rows * batch.length * model.num_kv_heads * model.head_dim / tp
    sent["context"] = 2 * model.num_layers / pp * m * keys * (cp - 1) / cp
    return sent
