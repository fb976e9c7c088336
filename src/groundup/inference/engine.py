"""Generation on one device: read the prompt once (prefill), then one token at a time (decode).

Shapes: B rows, T tokens, D model, V true vocabulary.
"""

import codecs
import copy
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.errors import CheckpointError, DataError
from groundup.core.vocabulary import require_token_ids
from groundup.inference.sampler import Sampling, sample
from groundup.models import evaluating, lm_head
from groundup.models.kv_cache import KeyValueCache

FinishReason = Literal["stop", "length", "context"]
"""Why a text ended: at a stop id, after ``max_new_tokens``, or because the model's context is full."""

_SEEDS = 1 << 63


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """Holds one completed text.

    Attributes:
        ids: The new tokens, without the stop id.
        text: Of these; bytes that are not UTF-8 as U+FFFD.
        finished: Why it ended.
    """

    ids: tuple[int, ...]
    text: str
    finished: FinishReason


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextDelta:
    """Holds what a text that is being generated grew by.

    Attributes:
        ids: The new tokens since the last delta.
        text: What can be shown since then; empty while a character lacks bytes.
        finished: Set on the last delta only, whose ids and text may be empty.
    """

    ids: tuple[int, ...]
    text: str
    finished: FinishReason | None = None


@dataclasses.dataclass(frozen=True)
class _Token:
    """Holds what one step adds to one row."""

    row: int
    id: int
    finished: FinishReason | None
    stops: bool


class Engine:
    """Completes prompts with one model.

    The context does not slide: when prompt and new tokens fill ``max_sequence_length``, the text ends
    with the reason "context".

    Args:
        loaded: Model and tokenizer. A model that is in training is put into evaluation mode while the
            engine works.
        dtype: The model computes in it; another than that of the weights makes a copy of these.
        max_batch_size: The most prompts in one batch.
    """

    def __init__(
        self, loaded: LoadedModel, *, dtype: torch.dtype = torch.float32, max_batch_size: int = 64
    ) -> None:
        self.config = loaded.config
        self.tokenizer = loaded.tokenizer
        self.max_batch_size = max_batch_size
        weight = next(loaded.model.parameters())
        self._model: Any = loaded.model
        if weight.dtype != dtype:
            self._model = copy.deepcopy(loaded.model).to(dtype)
        self._dtype = dtype
        self._device = weight.device
        # Some published models have more rows than their tokenizer has ids.
        self._vocab_size = min(self.config.vocab_size, self.tokenizer.vocab_size)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        seed: int = 0,
        stop_ids: Collection[int] = (),
    ) -> list[Generation]:
        """Completes each prompt as if it were alone: prompt ``i`` draws with the seed ``seed + i``.

        Args:
            prompts: Token ids, at least one each; equal prompts may repeat.
            sampling: How tokens are drawn.
            max_new_tokens: The most tokens that are added to a prompt.
            seed: Of the draws.
            stop_ids: Ids that end a text.

        Raises:
            DataError: A prompt is empty, longer than the context, or has an id outside the vocabulary.
            CheckpointError: The model computes logits that are not finite.
        """
        for prompt in prompts:
            self._check(prompt)
        by_length: dict[int, list[int]] = {}
        for index, prompt in enumerate(prompts):
            by_length.setdefault(len(prompt), []).append(index)
        ids: list[list[int]] = [[] for _ in prompts]
        reasons: list[FinishReason] = ["length"] * len(prompts)
        for indices in by_length.values():
            for begin in range(0, len(indices), self.max_batch_size):
                batch = indices[begin : begin + self.max_batch_size]
                steps = self._steps(
                    [prompts[index] for index in batch],
                    [_generator(seed + index) for index in batch],
                    sampling,
                    max_new_tokens,
                    stop_ids,
                )
                for token in steps:
                    index = batch[token.row]
                    if not token.stops:
                        ids[index].append(token.id)
                    reasons[index] = token.finished or reasons[index]
        return [
            Generation(ids=tuple(row), text=self._text(row), finished=reason)
            for row, reason in zip(ids, reasons, strict=True)
        ]

    def stream(
        self,
        prompt: Sequence[int],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        seed: int = 0,
        stop_ids: Collection[int] = (),
    ) -> Iterator[TextDelta]:
        """Completes one prompt, yielding what ``generate`` would return as it comes.

        Text comes in whole characters. The last delta says why the text ended.

        Raises:
            DataError, CheckpointError: As ``generate``; the latter while it is read.
        """
        self._check(prompt)
        return self._deltas(self._steps([prompt], [_generator(seed)], sampling, max_new_tokens, stop_ids))

    def _deltas(self, steps: Iterator[_Token]) -> Iterator[TextDelta]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        finished: FinishReason = "length"
        for token in steps:
            finished = token.finished or finished
            if not token.stops:
                yield TextDelta(ids=(token.id,), text=decoder.decode(self.tokenizer.token_bytes(token.id)))
        yield TextDelta(ids=(), text=decoder.decode(b"", final=True), finished=finished)

    def _text(self, ids: Sequence[int]) -> str:
        """Decodes a continuation; unlike ``tokenizer.decode`` it keeps the space that it begins with."""
        return b"".join(map(self.tokenizer.token_bytes, ids)).decode("utf-8", errors="replace")

    def _check(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise DataError(
                "the prompt is empty",
                fix=f"Begin with a token: the end-of-document id is {self.tokenizer.end_of_document_id}.",
            )
        longest = self.config.max_sequence_length
        if len(prompt) > longest:
            raise DataError(
                f"the prompt has {len(prompt):,} tokens, the model's context holds {longest:,}",
                fix=f"Cut the prompt to its last {longest:,} tokens or fewer.",
            )
        require_token_ids(
            np.array(prompt), self.config.vocab_size, place=lambda at: f"position {at} of the prompt"
        )

    @torch.no_grad()
    def _steps(
        self,
        prompts: Sequence[Sequence[int]],
        generators: Sequence[torch.Generator],
        sampling: Sampling,
        max_new_tokens: int,
        stop_ids: Collection[int],
    ) -> Iterator[_Token]:
        """Yields the tokens of prompts of one length, step by step; a finished row leaves the batch."""
        room = self.config.max_sequence_length - len(prompts[0]) + 1  # the last token is never read
        num_steps = min(max_new_tokens, room)
        if num_steps < 1:
            return
        rows = list(range(len(prompts)))
        cache = self._new_cache(len(rows), len(prompts[0]) + num_steps - 1)
        tokens_BT = torch.tensor(prompts, dtype=torch.int64, device=self._device)
        with evaluating(self._model):
            for step in range(1, num_steps + 1):
                last: FinishReason = "length" if max_new_tokens <= room else "context"
                ids_B = sample(self._logits(tokens_BT, cache), sampling, [generators[row] for row in rows])
                ids = ids_B.tolist()
                stops = [number in stop_ids for number in ids]
                for row, number, stop in zip(rows, ids, stops, strict=True):
                    finished: FinishReason | None = "stop" if stop else last if step == num_steps else None
                    yield _Token(row, number, finished, stop)
                going = [position for position, stop in enumerate(stops) if not stop]
                if not going:
                    return
                if len(going) < len(rows):
                    cache.keep(going)
                    ids_B = ids_B[going]
                    rows = [rows[position] for position in going]
                tokens_BT = ids_B.unsqueeze(1)

    def _logits(self, tokens_BT: Tensor, cache: KeyValueCache) -> Tensor:
        """Logits [B, V] of the token after the last one; ids without meaning are cut off."""
        hidden_BTD = self._model(tokens_BT, cache=cache)
        logits_BV = lm_head(self._model, hidden_BTD[:, -1], self._vocab_size)
        if not logits_BV.isfinite().all():  # of which any token could be drawn, or none
            raise CheckpointError(
                "the model's logits are not finite: its weights are not, or numbers overflow in"
                f" {str(self._dtype).removeprefix('torch.')}",
                fix="Take an earlier checkpoint.",
            )
        return logits_BV

    def _new_cache(self, batch_size: int, capacity: int) -> KeyValueCache:
        return KeyValueCache(
            num_layers=self.config.num_layers,
            batch_size=batch_size,
            num_kv_heads=self.config.num_kv_heads,
            capacity=capacity,
            head_dim=self.config.head_dim,
            dtype=self._dtype,
            device=self._device,
        )


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % _SEEDS)
