"""Memory of Megatron-LM's own runs of 2019 to 2023, by the formulas of its authors.

For scripts that still run there, and to check published figures; ``rank_memory`` counts ours. With attention
computed eagerly in fp16, dropout everywhere, and no sequence parallelism:

- 20 bytes a parameter: weight and gradient in fp16, and in fp32 the weight, its gradient and two moments (the
  optimizer of apex and DeepSpeed keeps that gradient; Rajbhandari et al. 2019, arXiv:1910.02054, section 3.1,
  count 16 without it);
- s b h (10 + 24 / t + 5 a s / (h t)) bytes a layer and micro-batch (Korthikanti et al. 2022,
  arXiv:2205.05198, equation 2), or with full recomputation 2 s b h, and one layer whole;
- 16 bytes a logit: fp16 and its gradient, and in fp32 a copy, its exponentials and their gradient.
"""

import dataclasses

from groundup.core.vocabulary import VOCAB_MULTIPLE, padded_vocab_size
from groundup.plan.part_counts import count_on_rank, head_of, held_of
from groundup.plan.rank_memory import CLASSES, RankMemory, Step

_LOGIT = 16


def megatron_memory(step: Step) -> list[RankMemory]:
    """Counts the memory of each rank of a pipeline by Megatron-LM's formulas; ``recompute`` none or full."""
    layout, batch = step.layout, step.batch
    model = step.model
    tp, pp = layout.tp, layout.pp
    model = dataclasses.replace(model, vocab_size=padded_vocab_size(model.vocab_size, VOCAB_MULTIPLE * tp))
    layers = model.num_layers // pp
    sbh = batch.rows * batch.length * model.hidden_size
    of_scores = 5 * model.num_heads * batch.length / model.hidden_size
    of_layer = int(sbh * (10 + (24 + of_scores) / tp))
    found = []
    for rank in range(pp):
        parameters = count_on_rank(model, tp)
        if pp > 1:
            parameters = layers * held_of("layer", model, step.optimizer, tp, 1).weights
            parameters += (rank == 0) * held_of("embed", model, step.optimizer, tp, 1).weights
            parameters += (rank == pp - 1) * head_of(model, tp)
        waiting = min(step.num_micro_batches, pp - rank) * layers
        activations = waiting * of_layer
        if step.recompute.mode == "full":
            activations = waiting * 2 * sbh + of_layer
        logits = _LOGIT * batch.rows * batch.length * head_of(model, tp) // model.hidden_size
        values = (
            2 * parameters,
            0,
            2 * parameters,
            16 * parameters,
            activations,
            logits * (rank == pp - 1),
            0,
        )
        found.append(RankMemory(rank, "loss", dict(zip(CLASSES, values, strict=True)), parameters))
    return found
