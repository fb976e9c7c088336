"""Do two models compute the same?"""

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from groundup.checkpoint.loaded import LoadedModel

_ROWS, _TOKENS = 2, 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity:
    """How far the logits of two models are apart on one batch.

    Attributes:
        max_difference: Largest absolute difference of two logits.
        top1_agreement: Share of positions whose most probable token is the same.
    """

    max_difference: float
    top1_agreement: float


def compare(first: LoadedModel, second: LoadedModel) -> Parity:
    """Compares two models of the same vocabulary on a fixed batch of arbitrary tokens."""
    length = min(_TOKENS, first.config.max_sequence_length, second.config.max_sequence_length)
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(first.config.vocab_size, (_ROWS, length), generator=generator)
    one, other = _logits(first, tokens_BT), _logits(second, tokens_BT)
    return Parity(
        max_difference=(one - other).abs().max().item(),
        top1_agreement=(one.argmax(-1) == other.argmax(-1)).double().mean().item(),
    )


def rounded(loaded: LoadedModel, dtype: torch.dtype) -> LoadedModel:
    """The model with its weights rounded to ``dtype`` and back to fp32."""
    if dtype == torch.float32:
        return loaded
    return dataclasses.replace(loaded, model=copy.deepcopy(loaded.model).to(dtype).float())


@torch.inference_mode()
def _logits(loaded: LoadedModel, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] on the CPU."""
    model: Any = loaded.model
    head_VD = model.head.weight[: loaded.config.vocab_size]
    return linear(model(tokens_BT.to(head_VD.device)), head_VD).cpu()
