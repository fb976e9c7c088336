"""What the end of a model takes: final norm, hidden states, and the loss with its logits and gradients."""

from groundup.models import ModelConfig, axes_of
from groundup.plan.layer_memory import FP32, MicroBatch
from groundup.plan.part_counts import head_of
from groundup.train.loss import CPU_LOGITS, rows_at_once


def final_norm(model: ModelConfig, batch: MicroBatch) -> int:
    """Counts the bytes that the final norm keeps: its input, and for an RMSNorm on a CPU a product."""
    composed = "layers.*.attention_norm.bias" not in axes_of(model) and not batch.on_gpu
    return batch.stream * model.hidden_size * (2 if composed else 1)


def final_hidden(model: ModelConfig, batch: MicroBatch) -> int:
    """Counts the bytes of the final hidden states of all tokens, which the loop holds until the next ones."""
    return (batch.itemsize if batch.tp > 1 else FP32) * batch.tokens * model.hidden_size


def loss_memory(model: ModelConfig, batch: MicroBatch) -> int:
    """Counts the bytes that ``linear_cross_entropy`` takes at its highest, its two gradients included.

    It is highest at the softmax, at the head's gradient, or where the hidden states' are joined.
    """
    head = head_of(model, batch.tp)
    vocabulary = head // model.hidden_size
    rows = rows_at_once(vocabulary, on_gpu=batch.on_gpu)
    tokens, chunks = min(rows, batch.tokens), -(-batch.tokens // rows)
    cast = batch.itemsize * (head + tokens * model.hidden_size) if batch.is_mixed else 0
    logits = batch.itemsize * tokens * vocabulary
    softmax = FP32 * tokens * vocabulary
    if batch.on_gpu and batch.tp == 1:
        softmax = 0  # one kernel
    elif batch.tp == 1:
        at_once = min(tokens * vocabulary, max(CPU_LOGITS, 32 * vocabulary))
        softmax = 0 if batch.is_mixed else FP32 * at_once  # in bf16 it is made in place
    hidden = batch.itemsize * batch.tokens * model.hidden_size
    gradient = FP32 * head
    product = gradient + (batch.itemsize * head if batch.is_mixed and not batch.on_gpu else 0)
    # The sum so far, and on a CPU the last chunk's part of it.
    earlier = gradient * (0 if batch.on_gpu and batch.is_mixed else min(2, chunks - 1))
    joined = gradient + hidden + final_hidden(model, batch) * batch.is_mixed
    return cast + logits + hidden + max(softmax + gradient * (chunks > 1), product + earlier, joined)
