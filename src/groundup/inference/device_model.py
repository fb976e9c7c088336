"""A model with its paged cache on one device.

Shapes: M tokens, R rows of which logits are wanted, D model, V true vocabulary.
"""

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from groundup.checkpoint.lazy import LoadedModel
from groundup.inference.decode_graphs import DecodeGraphs
from groundup.inference.fused_block import DecodingLinear, fuse_layers
from groundup.inference.int8_linear import Int8Linear, require_int8
from groundup.inference.packed_linear import PackedLinear, can_pack, sharing_weights
from groundup.inference.paged_cache import PagedCache
from groundup.inference.plain_linear import PlainLinear
from groundup.inference.runner import StepPlan
from groundup.models import ModelConfig, evaluating, lm_head


class DeviceModel:
    """Computes plans of steps.

    Args:
        model: On its device. One in training is used as it is, in evaluation mode while it runs here; of
            another one the linear layers are copied into a layout for decoding, where there is such a one.
        config: Of the model.
        vocab_size: Ids from here on are never produced.
        dtype: In which the model computes; one other than its weights' makes a copy of them. int8: linear
            layers have weights of 8 bits; all else, the embedding too, is in bf16.
        owns_model: Whether nobody else uses the model, so that copies replace its weights.
    """

    def __init__(
        self,
        model: nn.Module,
        config: ModelConfig,
        *,
        vocab_size: int,
        dtype: torch.dtype,
        owns_model: bool = False,
    ) -> None:
        weight = next(model.parameters())
        on_gpu = weight.device.type == "cuda"
        linear: DecodingLinear = PlainLinear if on_gpu else PackedLinear
        if dtype == torch.int8:
            require_int8(weight.device, 1)
            dtype, linear = torch.bfloat16, Int8Linear
        whole: Any = model
        if weight.dtype != dtype:
            whole = (model if owns_model else copy.deepcopy(model)).to(dtype)
        self._head: Callable[[Tensor], Tensor] = functools.partial(lm_head, whole, vocab_size=vocab_size)
        if linear is Int8Linear or ((on_gpu or can_pack(weight.device, dtype)) and not model.training):
            if not owns_model:
                whole = sharing_weights(whole)
            self._head = linear(whole.head.weight[:vocab_size], None)
            whole.head = None
            fuse_layers(whole, linear)
        self._model = whole
        self._device = weight.device
        self._config = config
        self._dtype = dtype
        self._cache: PagedCache | None = None
        self._graphs: DecodeGraphs | None = None

    @property
    def bytes_per_token(self) -> int:
        """Returns the bytes of a token's keys and values."""
        config = self._config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self._dtype.itemsize

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Makes room for keys and values."""
        config, on_gpu = self._config, self._device.type == "cuda"
        self._cache = PagedCache(
            layers=range(config.num_layers),
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            num_blocks=num_blocks + on_gpu,
            block_size=block_size,
            dtype=self._dtype,
            device=self._device,
        )
        if on_gpu and not self._model.training:
            self._graphs = DecodeGraphs(self._logits, self._cache, spare_block=num_blocks)

    @torch.inference_mode()
    def compute(self, plan: StepPlan) -> Tensor:
        """Returns the logits [R, V] of the plan's rows in fp32."""
        assert self._cache is not None, "allocation comes first"
        self._cache.change(cleared=plan.cleared, copies=plan.copies)
        if self._graphs and (logits_RV := self._graphs.compute(plan)) is not None:
            return logits_RV
        self._cache.prepare(plan.spans)
        tokens_M, positions_M = torch.tensor([plan.tokens, plan.positions], device=self._device)
        with evaluating(self._model) if self._model.training else contextlib.nullcontext():
            return self._logits(tokens_M.unsqueeze(0), positions_M.unsqueeze(0), plan.rows)

    def _logits(self, tokens_1M: Tensor, positions_1M: Tensor, rows: list[int] | None = None) -> Tensor:
        """Returns the logits of some rows, or of all."""
        hidden_MD = self._model(tokens_1M, positions_BT=positions_1M, cache=self._cache)[0]
        if rows is not None and rows != list(range(len(hidden_MD))):
            hidden_MD = hidden_MD[rows]
        return self._head(hidden_MD).float()


def text_vocab_size(loaded: LoadedModel) -> int:
    """Returns the number of ids that mean something.

    Some published models have more rows than their tokenizer has ids.
    """
    return min(loaded.config.vocab_size, loaded.tokenizer.vocab_size)
