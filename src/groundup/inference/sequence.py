"""A text that is being generated: what was asked for, and how far it is."""

import copy
import dataclasses
import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import numpy as np
import torch

from groundup.inference.sampler import Sampling, TokenLogprob
from groundup.inference.text_stream import TextStream

FinishReason = Literal["stop", "length", "context", "error"]
"""Why a text ended: a stop id or string came, ``max_new_tokens`` are made, the context is full, or the
model's logits were not finite."""

Overflow = Literal["stop", "refuse", "slide"]
"""What happens where prompt and new tokens exceed the context: the text ends there; the request is refused
before it begins; or the model reads the last half of the context again, and goes on without the rest."""

_SEEDS = 1 << 63
_LEAST_TOP_P = 1e-9  # 0 would keep all tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One text to be generated.

    Attributes:
        prompt: Token ids, at least one.
        sampling: How tokens are drawn.
        max_new_tokens: The most the text grows by; 0 where only the prompt's log-probabilities are wanted.
        seed: Of the draws.
        stop_ids: Ids that end the text; they are not part of it.
        stop: Strings that end the text; they are not part of it, though their tokens are in its ids.
        num_logprobs: How many alternatives of each token are reported with their log-probabilities; 0
            reports that of the token alone, None nothing.
        num_prompt_logprobs: The same of the prompt's tokens, the first of which has none.
        overflow: What happens when the context is full.
        top_p_decay: After each new token, ``sampling.top_p`` is multiplied by it.
        top_p_bound: Below which it does not fall.
        never_after: Two ids, of which the second is never drawn right after the first.
        num_beams: More than 1 searches for the most probable texts with so many beams, in place of drawing;
            ``Generation.beams`` has them.
        length_penalty: Of beam search: sums of log-probabilities are divided by the number of new tokens to
            this power; above 0 longer texts are preferred.
    """

    prompt: Sequence[int]
    sampling: Sampling
    max_new_tokens: int
    seed: int = 0
    stop_ids: Collection[int] = ()
    stop: Sequence[str] = ()
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    overflow: Overflow = "stop"
    top_p_decay: float = 1.0
    top_p_bound: float = 0.0
    never_after: tuple[int, int] | None = None
    num_beams: int = 1
    length_penalty: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beam:
    """One of the texts that a beam search found.

    Attributes:
        ids: The new tokens, without the stop id.
        text: What they say; bytes that are not UTF-8 as U+FFFD.
        score: The sum of their log-probabilities, and the stop id's, over their number to the power of the
            length penalty.
        finished: Why it ended.
    """

    ids: tuple[int, ...]
    text: str
    score: float
    finished: FinishReason


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delta:
    """What a step adds to a text.

    Attributes:
        sequence: The number that ``Engine.add`` gave the text.
        ids: The new tokens since the last delta.
        text: What can be shown since then; empty while a character lacks bytes, or while a stop string may
            have begun.
        logprobs: One an id, where they were asked for.
        prompt_logprobs: One for each token of the prompt but the first, where they were asked for; on the
            text's first delta.
        beams: What a beam search found, the best first, whose ids and text are those of the delta; there is
            no delta before.
        finished: Set on the last delta only, whose ids and text may be empty.
        stop_id: On the last delta, the stop id that ended the text; None where none did.
    """

    sequence: int
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    beams: tuple[Beam, ...] = ()
    finished: FinishReason | None = None
    stop_id: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """One completed text.

    Attributes:
        ids: The new tokens, without the stop id.
        text: What they say, without the stop string; bytes that are not UTF-8 as U+FFFD.
        finished: Why it ended.
        logprobs: One an id, where they were asked for.
        prompt_logprobs: One for each token of the prompt but the first, where they were asked for.
        beams: What a beam search found, the best first, which is this one.
        stop_id: The stop id that ended the text; None where none did.
    """

    ids: tuple[int, ...]
    text: str
    finished: FinishReason
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    beams: tuple[Beam, ...] = ()
    stop_id: int | None = None

    @classmethod
    def joined(cls, deltas: Iterator[Delta]) -> "Generation":
        """Joins all deltas of a text."""
        every = list(deltas)
        reason = every[-1].finished
        assert reason, "the last delta says why"
        return cls(
            ids=tuple(number for delta in every for number in delta.ids),
            text="".join(delta.text for delta in every),
            finished=reason,
            logprobs=tuple(logprob for delta in every for logprob in delta.logprobs),
            prompt_logprobs=every[0].prompt_logprobs,
            beams=every[-1].beams,
            stop_id=every[-1].stop_id,
        )


class TokenSequence:
    """A request in work: its tokens, the cache blocks that hold their keys and values, its random state.

    The model sees the tokens from ``begin`` on, at positions counted from there; ``computed`` of them are in
    the cache, in ``blocks``.
    """

    def __init__(self, number: int, request: Request) -> None:
        self.number = number
        self.request = request
        self.tokens = list(request.prompt)
        self.generator = torch.Generator().manual_seed(request.seed % _SEEDS)
        self.text = TextStream(request.stop)
        self.begin = 0
        self.computed = 0
        self.blocks: list[int] = []
        self.num_published = 0  # of its blocks: known to the block manager by their digests
        self.num_places = 1  # in the batch
        self.is_held = False  # until its next token is chosen: then there is nothing to compute
        self.prompt_logprobs: list[TokenLogprob] = []
        self._num_taken = 0
        self._digests: list[bytes] = []

    @property
    def length(self) -> int:
        """Returns the number of tokens that the model sees."""
        return len(self.tokens) - self.begin

    @property
    def pending(self) -> int:
        """Returns the number of tokens that are not in the cache yet; 1 while it decodes."""
        return self.length - self.computed

    @property
    def num_new(self) -> int:
        """Returns the number of generated tokens."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_reusable(self) -> int:
        """Returns how many tokens at the beginning need not pass through the model if others' cache has them.

        What it gives for the last token is always wanted, and for those of the prompt whose successors'
        log-probabilities are.
        """
        if self.request.num_prompt_logprobs is None or self.begin:
            return self.length - 1
        return min(self.length - 1, len(self.prompt_logprobs))

    @property
    def num_wanted(self) -> int:
        """Returns how many tokens are still to be generated at most."""
        return self.request.max_new_tokens - self.num_new

    def take_prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Returns the log-probabilities of the prompt that were not returned before."""
        begin, self._num_taken = self._num_taken, len(self.prompt_logprobs)
        return tuple(self.prompt_logprobs[begin:])

    def wanted_of_prompt(self, begin: int, end: int) -> range:
        """Returns at which of these positions the model tells a missing log-probability of the prompt."""
        if self.request.num_prompt_logprobs is None or self.begin:
            return range(0)
        return range(max(begin, len(self.prompt_logprobs)), min(end, len(self.request.prompt) - 1))

    @property
    def sampling(self) -> Sampling:
        """Returns how the next token is drawn."""
        request = self.request
        if request.top_p_decay == 1:
            return request.sampling
        top_p = request.sampling.top_p * request.top_p_decay**self.num_new
        return dataclasses.replace(request.sampling, top_p=max(top_p, request.top_p_bound, _LEAST_TOP_P))

    def window(self, begin: int, end: int) -> list[int]:
        """Returns tokens by their positions."""
        return self.tokens[self.begin + begin : self.begin + end]

    def fork(self) -> "TokenSequence":
        """Returns a copy that holds no blocks."""
        twin = copy.copy(self)
        twin.tokens, twin.blocks = list(self.tokens), []
        twin._digests = list(self._digests)
        twin.computed = twin.num_published = 0
        return twin

    def slide(self, length: int) -> None:
        """Lets the model see the last tokens only, at positions from 0 on; its blocks must be free."""
        self.begin = len(self.tokens) - length
        self._digests = []

    def digests(self, num_blocks: int, block_size: int) -> list[bytes]:
        """Returns hashes of the first blocks of tokens, each of them with all tokens before."""
        for index in range(len(self._digests), num_blocks):
            tokens = self.window(index * block_size, (index + 1) * block_size)
            before = self._digests[-1] if self._digests else b""
            data = before + np.array(tokens, dtype=np.int64).tobytes()
            self._digests.append(hashlib.blake2b(data, digest_size=16).digest())
        return self._digests[:num_blocks]
