"""What every contender shares: model shapes, random tokens, the allocator setting and the JSON line."""

import ctypes
import dataclasses
import json
import os
import statistics
import sys

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """A model and the batch it is measured on; a GPT-2, unless the matrices of a layer have other weights."""

    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    sequence_length: int
    micro_batch_size: int
    micro_batches: int = 1
    layer_weights: int = 0

    @property
    def tokens_per_step(self) -> int:
        """Target tokens of one optimizer step."""
        return self.sequence_length * self.micro_batch_size * self.micro_batches

    @property
    def flops_per_token(self) -> float:
        """Of one training step's matrix products: 6 per weight, and attention counted as causal."""
        of_layer = self.layer_weights or 12 * self.hidden_size**2
        weights = of_layer * self.num_layers + self.vocab_size * self.hidden_size
        return 6 * weights + 6 * self.num_layers * self.sequence_length * self.hidden_size


SHAPES = {
    "124m": Shape(
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        vocab_size=50304,
        sequence_length=512,
        micro_batch_size=2,
    ),
    "10m": Shape(
        num_layers=6, hidden_size=384, num_heads=6, vocab_size=8192, sequence_length=512, micro_batch_size=8
    ),
}


_OF_GPT2 = {"vocab_size": 50304, "sequence_length": 1024, "micro_batches": 4}
GPU_SHAPES = {
    "gpt2-124m": Shape(num_layers=12, hidden_size=768, num_heads=12, micro_batch_size=32, **_OF_GPT2),
    "gpt2-345m": Shape(num_layers=24, hidden_size=1024, num_heads=16, micro_batch_size=16, **_OF_GPT2),
    "gpt2-1558m": Shape(num_layers=48, hidden_size=1600, num_heads=25, micro_batch_size=8, **_OF_GPT2),
    "llama-1b": Shape(
        num_layers=16,
        hidden_size=2048,
        num_heads=32,
        vocab_size=128256,
        sequence_length=2048,
        micro_batch_size=4,
        micro_batches=4,
        layer_weights=60_817_408,
    ),
}
"""The last has 8 key/value heads, a feed-forward width of 8192 and a tied embedding: Llama-3.2-1B."""


def random_tokens(shape: Shape, num_samples: int, *, seed: int) -> Tensor:
    """Tokens [num_samples, sequence_length + 1], uniform over the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(shape.vocab_size, (num_samples, shape.sequence_length + 1), generator=generator)


def keep_freed_memory() -> None:
    """glibc: never serve tensors by mmap (M_MMAP_MAX = -4) nor return freed ones (M_TRIM_THRESHOLD = -1)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not (mallopt(-4, 0) and mallopt(-1, -1)):
        sys.exit("--mallopt needs glibc")


def print_result(shape: Shape, step_seconds: list[float], *, warmup_steps: int) -> None:
    """Prints one JSON line: the median tokens/s after the warm-up, and what it was computed from."""
    timed = step_seconds[warmup_steps:]
    record = {
        "tokens_per_second": shape.tokens_per_step / statistics.median(timed),
        "first_step_seconds": step_seconds[0],
        "step_seconds": timed,
        "threads": torch.get_num_threads(),
        "allocator": "tcmalloc" if "tcmalloc" in os.environ.get("LD_PRELOAD", "") else "glibc",
        "torch": torch.__version__,
    }
    print(json.dumps(record), flush=True)
