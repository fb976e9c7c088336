"""Runs the model over the work of a step: one forward pass, whatever mixture of texts it is.

Shapes: M tokens, R texts whose next token is wanted, D model, V true vocabulary.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from groundup.inference.packed_linear import PackedLinear, can_pack, with_packed_layers
from groundup.inference.paged_cache import PagedCache, Span
from groundup.inference.scheduler import Work
from groundup.inference.sequence import TokenSequence
from groundup.models import ModelConfig, evaluating, lm_head


class Runner:
    """A model with its cache.

    Args:
        model: On its device. One in training is used as it is, in evaluation mode while it runs here; of
            another one the linear layers are copied into a layout for decoding, where there is such a one.
        config: Of the model.
        vocab_size: Ids from here on are never produced.
        dtype: In which the model computes; one other than its weights' makes a copy of them.
        num_blocks: Of the cache.
        block_size: Tokens a block.
    """

    def __init__(
        self,
        model: nn.Module,
        config: ModelConfig,
        *,
        vocab_size: int,
        dtype: torch.dtype,
        num_blocks: int,
        block_size: int,
    ) -> None:
        weight = next(model.parameters())
        whole: Any = model if weight.dtype == dtype else copy.deepcopy(model).to(dtype)
        self._head: Callable[[Tensor], Tensor] = functools.partial(lm_head, whole, vocab_size=vocab_size)
        self._model = whole
        if can_pack(weight.device, dtype) and not model.training:
            self._head = PackedLinear(whole.head.weight[:vocab_size], None)
            self._model = with_packed_layers(whole)
        self.device = weight.device
        self.cache = PagedCache(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=dtype,
            device=weight.device,
        )

    @torch.inference_mode()
    def run(self, work: Sequence[Work]) -> tuple[list[TokenSequence], Tensor]:
        """Returns the texts whose next token can be drawn, and its logits [R, V] in fp32."""
        ordered = sorted(work, key=lambda one: (one.num_tokens > 1, -one.sequence.computed))
        spans: list[Span] = []
        tokens: list[int] = []
        positions: list[int] = []
        last_rows: list[int] = []
        for one in ordered:
            begin = one.sequence.computed
            span = Span(begin, one.num_tokens, one.sequence.blocks)
            spans.append(span)
            tokens += one.sequence.window(begin, span.end)
            positions += range(begin, span.end)
            if one.is_last:
                last_rows.append(len(tokens) - 1)
        self.cache.plan(spans)
        tokens_1M, positions_1M = torch.tensor([tokens, positions], device=self.device).unsqueeze(1)
        with evaluating(self._model) if self._model.training else contextlib.nullcontext():
            hidden_MD = self._model(tokens_1M, positions_BT=positions_1M, cache=self.cache)[0]
            if len(last_rows) < len(tokens):
                hidden_MD = hidden_MD[last_rows]
            return [one.sequence for one in ordered if one.is_last], self._head(hidden_MD).float()
