"""What a layer keeps for its backward pass, tensor by tensor, in bytes.

Korthikanti et al. 2022 (arXiv:2205.05198, table 2) count s b h (34 + 5 a s / h) bytes for Megatron-LM's layer
in 16 bits with dropout. Ours keeps other things, and this is their list, checked against measured peaks
(``benchmarks/plan_memory.py``):

- the stream between blocks is fp32 under autocast, and is kept twice: as the input of either norm;
- autocast casts the input of each matrix anew, so that queries, keys and values (and the two branches of a
  gated MLP) each keep a copy; with tensor parallelism the gathered input is cast once, and kept whole;
- of attention, queries, keys, values and output: fused kernels keep no weights, but a sum for each query;
- of the MLP, what goes into its activation function and what comes out.

Shapes: B rows, T tokens of a row on this rank (cp divides them), S tokens of a row, D model, F ffn, N heads,
K kv heads, H head dim.
"""

import dataclasses
from typing import Literal

from groundup.models import ModelConfig, axes_of
from groundup.models.gelu import scratch_bytes

BLOCK = 128
"""Queries of a block of ``blocked_attention``."""

FP32 = 4

Kernel = Literal["fused", "blocked", "dense"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """The shape of a forward pass on a rank.

    Attributes:
        rows: B.
        length: S.
        itemsize: Bytes of a number of matrix products: 2 under autocast, else 4.
        on_gpu: Else on a CPU, whose kernels keep other things.
        masks_documents: Attention within documents.
    """

    rows: int
    length: int
    tp: int
    cp: int
    itemsize: int
    on_gpu: bool
    masks_documents: bool = False

    @property
    def tokens(self) -> int:
        """B T."""
        return self.rows * self.length // self.cp

    @property
    def stream(self) -> int:
        """Bytes of the stream between layers, of which sequence parallelism leaves each rank a part."""
        return FP32 * self.tokens // self.tp

    @property
    def is_mixed(self) -> bool:
        """Whether products run in another format than that of the weights."""
        return self.itemsize < FP32


@dataclasses.dataclass(frozen=True)
class LayerMemory:
    """Bytes of one layer and micro-batch on a rank.

    Attributes:
        input: Of the stream that enters it.
        kept: By ``recompute.mode`` none, its input included.
        selected: By mode selective, its input included.
        backward: Most that a backward pass takes on top.
    """

    input: int
    kept: int
    selected: int
    backward: int

    def kept_under(self, mode: str) -> int:
        """Bytes that wait for the backward pass under a mode of recomputation."""
        return {"none": self.kept, "selective": self.selected, "full": self.input}[mode]


def attention_kernel(model: ModelConfig, batch: MicroBatch) -> Kernel:
    """Returns the kind of kernel that ``models.masks`` chooses."""
    if batch.on_gpu:
        return "fused"
    if model.attention_dropout:
        return "dense"  # PyTorch's kernel for a CPU has no dropout
    return "blocked" if batch.is_mixed or batch.masks_documents else "fused"


def layer_memory(model: ModelConfig, batch: MicroBatch) -> LayerMemory:
    """Counts the bytes of one layer.

    Args:
        model: Architecture.
        batch: What passes through.
    """
    axes, size, tp = axes_of(model), batch.itemsize, batch.tp
    gated = "layers.*.mlp.w3.weight" in axes
    d_bytes = size * batch.tokens * model.hidden_size  # of a copy of all tokens for the products
    f_bytes = size * batch.tokens * model.ffn_size // tp
    q_bytes = d_bytes // tp
    kv_bytes = 2 * size * batch.tokens * model.num_kv_heads * model.head_dim // min(tp, model.num_kv_heads)
    stream = batch.stream * model.hidden_size
    norm = batch.stream
    if "layers.*.attention_norm.bias" in axes:
        norm *= 2  # mean and deviation
    elif not batch.on_gpu:
        norm += stream  # RMSNorm is composed of products there

    copies = 1 if tp > 1 or not batch.is_mixed else 0
    inputs = (copies or 3) * d_bytes + (copies or 1 + gated) * d_bytes
    attended = _attention(model, batch, q_bytes, kv_bytes)
    mlp = (4 if gated else 2) * f_bytes
    noise = 1 if batch.on_gpu else size  # bytes of dropout's mask for a number
    dropout = 2 * noise * batch.tokens // tp * model.hidden_size if model.dropout else 0
    kept = 2 * (stream + norm) + inputs + attended + mlp + dropout

    selected = stream + q_bytes + kv_bytes + d_bytes // tp + (1 + gated) * f_bytes
    if attention_kernel(model, batch) == "fused" and not model.attention_dropout:
        selected += q_bytes + FP32 * batch.tokens * model.num_heads // tp
    if model.dropout:
        selected += d_bytes // tp
    matrix = size * model.hidden_size * model.ffn_size // tp
    backward = stream + f_bytes * (1 + gated) + matrix + (d_bytes // tp if batch.is_mixed else 0)
    if batch.is_mixed and not batch.on_gpu and not gated:
        backward += scratch_bytes(batch.tokens * model.ffn_size // tp)
    return LayerMemory(input=stream, kept=kept, selected=selected, backward=backward)


def _attention(model: ModelConfig, batch: MicroBatch, q_bytes: int, kv_bytes: int) -> int:
    """Counts what attention keeps: queries, keys, values, output, and what its kernel adds."""
    heads, kernel = model.num_heads / batch.tp, attention_kernel(model, batch)
    own, length = batch.length // batch.cp, batch.length
    keys = kv_bytes * batch.cp
    if kernel != "fused" and model.num_kv_heads < model.num_heads:
        keys = 2 * q_bytes * batch.cp  # repeated to as many as the queries have
    output = q_bytes if batch.cp == 1 else 2 * q_bytes  # of two chunks, and joined
    if kernel == "fused":
        return q_bytes + keys + output + int(FP32 * batch.rows * own * heads)
    if kernel == "dense":  # softmax, the noise of dropout, their product
        return q_bytes + keys + output + int(3 * batch.itemsize * batch.rows * heads * own * length)
    pairs = sum(min(BLOCK, length - begin) * min(begin + BLOCK, length) for begin in range(0, length, BLOCK))
    return q_bytes + keys + output + int(batch.itemsize * batch.rows * heads * pairs / batch.cp)
