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
    """A GPT-2 model and the batch it is measured on."""

    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    sequence_length: int
    micro_batch_size: int

    @property
    def tokens_per_step(self) -> int:
        """Target tokens of one optimizer step; there is no accumulation."""
        return self.sequence_length * self.micro_batch_size

    @property
    def flops_per_token(self) -> float:
        """Of one training step's matrix products: 6 per weight, and attention counted as causal."""
        weights = 12 * self.num_layers * self.hidden_size**2 + self.vocab_size * self.hidden_size
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
