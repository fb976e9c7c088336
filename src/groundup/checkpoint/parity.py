"""Do two models compute the same?"""

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from groundup.checkpoint.lazy import LazyModel, LoadedModel
from groundup.checkpoint.logical_tensors import pad
from groundup.models import build_model, lm_head
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.word_list import WordListTokenizer

TOLERANCE = 1e-5
"""Largest difference of two logits of one model in two formats, as a share of the largest logit (or of 1)."""

_ROWS, _TOKENS = 1, 96  # few: a model of 7B computes 14 GFLOP a token
_TEXT = """The harbour lay quiet under the first light. A boat came in past the breakwater, low in the water,
and the men on the quay stopped talking to watch it. "How many days?" one of them asked. "Nine," said the
woman at the rudder, "and two of them without wind." She threw the rope, and he caught it and made it fast
to the iron ring. In 1907 her grandfather had built the boat of oak and larch; since then three engines had
come and gone, but the hull was the same. They carried the boxes up to the market, where ice was already
waiting, and by seven o'clock half of the catch had been sold. The price was good that week. What was left
went to the smokehouse behind the church, and the gulls had the rest.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity:
    """How far two models are apart on one batch.

    Attributes:
        max_difference: Largest absolute difference of two logits.
        largest_logit: Largest absolute value of a logit of the first.
        top1_agreement: Share of positions whose most probable token is the same.
        divergence: Mean Kullback-Leibler divergence of the second's next-token distributions from the
            first's, in nats.
        perplexities: Of a short English text under the first and the second.
    """

    max_difference: float
    largest_logit: float = 1.0
    top1_agreement: float
    divergence: float = 0.0
    perplexities: tuple[float, float] = (math.nan, math.nan)

    @property
    def is_finite(self) -> bool:
        """Whether all logits of both are numbers, none of them infinite."""
        return math.isfinite(self.max_difference)

    def within(self, tolerance: float) -> bool:
        """Whether logits differ by no more than a share of the largest, or of 1 where all are smaller."""
        return self.max_difference <= tolerance * max(1.0, self.largest_logit)


def compare(first: LoadedModel, second: LoadedModel) -> Parity:
    """Compares two models in memory on a fixed batch: rows of arbitrary tokens and one of English text."""
    tokens_BT = _tokens(first, second)
    return _compared(_logits(first, tokens_BT), _logits(second, tokens_BT), tokens_BT)


def compare_stored(first: LazyModel, second: LazyModel) -> Parity:
    """Compares two models on a disk in fp32, one layer in memory at a time; else like ``compare``."""
    tokens_BT = _tokens(first, second)
    return _compared(_streamed_logits(first, tokens_BT), _streamed_logits(second, tokens_BT), tokens_BT)


class Reference:
    """A model's logits in fp32 on a fixed batch, computed once, to compare several others with.

    Args:
        stored: The model; one layer of it is in memory at a time.
    """

    def __init__(self, stored: LazyModel) -> None:
        self._stored = stored
        self._tokens_BT = _tokens(stored, stored)
        self._logits_BTV = _streamed_logits(stored, self._tokens_BT)

    def compare(self, other: LazyModel) -> Parity:
        """Compares with a model on a disk, of the same vocabulary and length."""
        return self.compare_logits(lambda tokens_BT: _streamed_logits(other, tokens_BT))

    def compare_logits(self, logits_of: Callable[[Tensor], Tensor]) -> Parity:
        """Compares with what makes logits [B, T, V] of token ids [B, T]."""
        return _compared(self._logits_BTV, logits_of(self._tokens_BT), self._tokens_BT)

    def same_ids(self, other: LazyModel) -> bool:
        """Whether another model's tokenizer makes the same ids of a text, English where it can."""
        text = _text_of(self._stored.tokenizer)
        return self._stored.tokenizer.encode(text) == other.tokenizer.encode(text)


def rounded(loaded: LoadedModel, dtype: torch.dtype) -> LoadedModel:
    """The model with its weights rounded to ``dtype`` and back to fp32."""
    if dtype == torch.float32:
        return loaded
    return dataclasses.replace(loaded, model=copy.deepcopy(loaded.model).to(dtype).float())


def _tokens(first: LoadedModel | LazyModel, second: LoadedModel | LazyModel) -> Tensor:
    """Ids [B, T]; the last row is text."""
    length = min(_TOKENS, first.config.max_sequence_length, second.config.max_sequence_length)
    generator = torch.Generator().manual_seed(0)
    arbitrary_BT = torch.randint(first.config.vocab_size, (_ROWS, length), generator=generator)
    text_T = torch.tensor(first.tokenizer.encode(_text_of(first.tokenizer))[:length])
    text_T = text_T.repeat(-(-length // text_T.numel()))[:length]  # a vocabulary of long words
    return torch.cat((arbitrary_BT, text_T.unsqueeze(0)))


def _text_of(tokenizer: Tokenizer) -> str:
    """The English text, of a list of words as much as is in it, or else the list."""
    if not isinstance(tokenizer, WordListTokenizer):
        return _TEXT
    known = [word for word in _TEXT if word in tokenizer.words] if tokenizer.kind == "characters" else []
    return "".join(known) or tokenizer.decode(range(tokenizer.vocab_size))


def _compared(one_BTV: Tensor, other_BTV: Tensor, tokens_BT: Tensor) -> Parity:
    return Parity(
        max_difference=(one_BTV - other_BTV).abs().max().item(),
        largest_logit=one_BTV.abs().max().item(),
        top1_agreement=(one_BTV.argmax(-1) == other_BTV.argmax(-1)).double().mean().item(),
        divergence=kl_div(
            other_BTV.flatten(0, 1).log_softmax(-1),
            one_BTV.flatten(0, 1).log_softmax(-1),
            log_target=True,
            reduction="batchmean",
        ).item(),
        perplexities=(_perplexity(one_BTV, tokens_BT), _perplexity(other_BTV, tokens_BT)),
    )


def _perplexity(logits_BTV: Tensor, tokens_BT: Tensor) -> float:
    return cross_entropy(logits_BTV[-1, :-1], tokens_BT[-1, 1:]).double().exp().item()


@torch.inference_mode()
def _logits(loaded: LoadedModel, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] on the CPU."""
    model = loaded.model
    hidden_BTD = model(tokens_BT.to(next(model.parameters()).device))
    return lm_head(model, hidden_BTD, loaded.config.vocab_size).cpu()


@torch.inference_mode()
def _streamed_logits(stored: LazyModel, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V]; each part of the model is read just before it computes and dropped right after."""
    model: Any = build_model(stored.config, device="meta").eval()
    parts: list[tuple[str, nn.Module]] = [("embed", model.embed), ("norm", model.norm)]
    parts += [(f"layers.{number}", block) for number, block in model.layers.items()]
    for name, part in parts:
        part.register_forward_pre_hook(_Reading(stored, name))
        part.register_forward_hook(_drop)
    x_BTD = model(tokens_BT)
    head = "embed.tokens.weight" if stored.config.tied_embedding else "head.weight"
    model.head.weight = nn.Parameter(stored.weights[head].read().float(), requires_grad=False)
    return lm_head(model, x_BTD, stored.config.vocab_size)


@dataclasses.dataclass(frozen=True)
class _Reading:
    """Fills a part of a model on the meta device with its weights in fp32."""

    stored: LazyModel
    name: str

    def __call__(self, part: nn.Module, _: Any) -> None:
        for path, _meta in list(part.named_parameters()):
            name = f"{self.name}.{path}"
            tensor = pad(name, self.stored.weights[name].read().float(), self.stored.config)
            owner, _dot, attribute = path.rpartition(".")
            setattr(part.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))


def _drop(part: nn.Module, *_: Any) -> None:
    part.to("meta")
