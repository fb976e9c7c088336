"""Generates many texts at once on one device: requests in, pieces of text out."""

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import torch

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.core.vocabulary import require_token_ids
from groundup.inference.block_manager import BlockManager
from groundup.inference.runner import Runner
from groundup.inference.sampler import Sampling, TokenLogprob, logprobs_of, sample_each
from groundup.inference.scheduler import Scheduler
from groundup.inference.sequence import Delta, FinishReason, Generation, Request, TokenSequence

BLOCK_SIZE = 16
"""Tokens of a cache block."""


class Engine:
    """Completes prompts with one model; texts join and leave the batch at any step.

    ``generate``, ``complete`` and ``stream`` are for one caller. A service uses ``add``, ``step`` and
    ``abort``, from one thread, and hands out the deltas itself.

    Args:
        loaded: Model and tokenizer. A model in training is put into evaluation mode while the engine works.
        dtype: In which the model computes; one other than its weights' makes a copy of them.
        max_batch_size: Most texts that are worked on together.
        max_step_tokens: Most tokens of a step: the larger, the sooner a prompt is read; the smaller, the less
            others wait for it.
        cache_bytes: Memory for keys and values; less where so many texts of a whole context need less.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        dtype: torch.dtype = torch.float32,
        max_batch_size: int = 64,
        max_step_tokens: int = 256,
        cache_bytes: int = 1 << 30,
    ) -> None:
        config = loaded.config
        self.config = config
        self.tokenizer = loaded.tokenizer
        block_bytes = (
            2 * BLOCK_SIZE * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
        )
        num_blocks = min(
            cache_bytes // block_bytes, max_batch_size * -(-config.max_sequence_length // BLOCK_SIZE)
        )
        if num_blocks < 2:
            raise ConfigError(
                f"{cache_bytes:,} bytes of cache are less than two blocks of {block_bytes:,}",
                fix="Allow more.",
            )
        self.context = min(config.max_sequence_length, num_blocks * BLOCK_SIZE)
        """Tokens that the model can see at once."""
        self.blocks = BlockManager(num_blocks)
        self.scheduler = Scheduler(
            self.blocks,
            block_size=BLOCK_SIZE,
            max_batch_size=max_batch_size,
            max_step_tokens=max_step_tokens,
        )
        self.runner = Runner(
            loaded.model,
            config,
            # Some published models have more rows than their tokenizer has ids: those mean nothing.
            vocab_size=min(config.vocab_size, self.tokenizer.vocab_size),
            dtype=dtype,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
        )
        self._dtype = dtype
        self._numbers = itertools.count()
        self._sequences: dict[int, TokenSequence] = {}
        self._inboxes: dict[int, deque[Delta]] = {}

    def add(self, request: Request) -> int:
        """Queues a request; it joins the batch at the next step. Returns the number of its text.

        Raises:
            DataError, ConfigError: As ``check``.
        """
        self.check(request)
        sequence = TokenSequence(next(self._numbers), request)
        self._fit(sequence)
        self._sequences[sequence.number] = sequence
        self.scheduler.add(sequence)
        return sequence.number

    def abort(self, number: int) -> None:
        """Ends a text, of which no more deltas come, and frees what it holds; nothing if it has ended."""
        self._inboxes.pop(number, None)
        if (sequence := self._sequences.pop(number, None)) is not None:
            self.scheduler.remove(sequence)

    def step(self) -> list[Delta]:
        """Does the work of one step; returns what it added to the texts.

        Nothing when no text is in work.
        """
        work = self.scheduler.schedule()
        if not work:
            return []
        sequences, logits_RV = self.runner.run(work)
        self.scheduler.computed(work)
        if not sequences:
            return []
        # A sum is the cheapest look at all; of logits that are not finite any token could be drawn, or none.
        finite = logits_RV.sum(-1).isfinite().tolist()
        deltas = [self._fail(one) for one, sound in zip(sequences, finite, strict=True) if not sound]
        if deltas:
            logits_RV = logits_RV[finite]
            sequences = [one for one, sound in zip(sequences, finite, strict=True) if sound]
        ids = sample_each(
            logits_RV,
            [one.request.sampling for one in sequences],
            [one.generator for one in sequences],
            [one.tokens for one in sequences],
        )
        logprobs = logprobs_of(logits_RV, ids, [one.request.num_logprobs for one in sequences])
        return deltas + [
            self._advance(sequence, number, logprob)
            for sequence, number, logprob in zip(sequences, ids, logprobs, strict=True)
        ]

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

        The settings are those of ``Request``.

        Raises:
            DataError, ConfigError: As ``check``.
            CheckpointError: The model computes logits that are not finite.
        """
        requests = [
            Request(
                prompt=prompt,
                sampling=sampling,
                max_new_tokens=max_new_tokens,
                seed=seed + index,
                stop_ids=stop_ids,
            )
            for index, prompt in enumerate(prompts)
        ]
        for request in requests:
            self.check(request)
        return list(self.complete(requests))

    def complete(self, requests: Iterable[Request]) -> Iterator[Generation]:
        """Completes requests and yields them in their order; reads not much further ahead than it works.

        Raises:
            DataError, CheckpointError: As ``generate``.
        """
        numbers: deque[int] = deque()
        source = iter(requests)
        try:
            while True:
                ahead = 2 * self.scheduler.max_batch_size - len(numbers)
                numbers.extend(self._open(request) for request in itertools.islice(source, ahead))
                if not numbers:
                    return
                yield Generation.joined(self._read(numbers[0]))
                numbers.popleft()
        finally:
            for number in numbers:
                self.abort(number)

    def stream(self, request: Request) -> Iterator[Delta]:
        """Completes one request, yielding what ``complete`` would return as it comes.

        Text comes in whole characters. The last delta says why the text ended.

        Raises:
            DataError, CheckpointError: As ``generate``; the latter while it is read.
        """
        self.check(request)
        return (delta for one in (request,) for delta in self._read(self._open(one)))

    def _open(self, request: Request) -> int:
        number = self.add(request)
        self._inboxes[number] = deque()
        return number

    def _read(self, number: int) -> Iterator[Delta]:
        """Steps until a text has ended; deltas of others wait in their inboxes."""
        inbox = self._inboxes[number]
        try:
            while True:
                while not inbox:
                    for delta in self.step():
                        if delta.sequence in self._inboxes:
                            self._inboxes[delta.sequence].append(delta)
                delta = inbox.popleft()
                if delta.finished == "error":
                    raise CheckpointError(
                        "the model's logits are not finite: its weights are not, or numbers overflow in"
                        f" {str(self._dtype).removeprefix('torch.')}",
                        fix="Take an earlier checkpoint.",
                    )
                yield delta
                if delta.finished:
                    return
        finally:
            self.abort(number)

    def check(self, request: Request) -> None:
        """Refuses what cannot be generated.

        Raises:
            DataError: The prompt is empty, too long, or has an id outside the vocabulary.
            ConfigError: No token is asked for.
        """
        prompt, context = request.prompt, self.context
        if not prompt:
            raise DataError(
                "the prompt is empty",
                fix=f"Begin with a token: the end-of-document id is {self.tokenizer.end_of_document_id}.",
            )
        if request.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {request.max_new_tokens}, not 1 or more")
        if len(prompt) > context and request.overflow != "slide":
            raise DataError(
                f"the prompt has {len(prompt):,} tokens, the model's context holds {context:,}",
                fix=f"Cut the prompt to its last {context:,} tokens or fewer.",
            )
        if request.overflow == "refuse" and len(prompt) + request.max_new_tokens > context:
            raise DataError(
                f"{len(prompt):,} tokens of the prompt and {request.max_new_tokens:,} new ones exceed the"
                f" context of {context:,}",
                fix="Shorten the prompt, or ask for fewer tokens.",
            )
        require_token_ids(
            np.array(prompt), self.config.vocab_size, place=lambda at: f"position {at} of the prompt"
        )

    def _advance(self, sequence: TokenSequence, number: int, logprob: TokenLogprob | None) -> Delta:
        """Adds a drawn token to its text."""
        request = sequence.request
        if number in request.stop_ids:
            return self._end(sequence, "stop")
        sequence.tokens.append(number)
        text = sequence.text.feed(self.tokenizer.token_bytes(number))
        logprobs = (logprob,) if logprob else ()
        reason: FinishReason | None = None
        if sequence.text.stopped:
            reason = "stop"
        elif sequence.num_new == request.max_new_tokens:
            reason = "length"
        elif sequence.length > self.context:
            reason = None if request.overflow == "slide" else "context"
            self._fit(sequence)
        if reason is None:
            return Delta(sequence=sequence.number, ids=(number,), text=text, logprobs=logprobs)
        return self._end(sequence, reason, ids=(number,), text=text, logprobs=logprobs)

    def _fit(self, sequence: TokenSequence) -> None:
        """Lets a text that exceeds the context go on with the last half of it."""
        if sequence.length > self.context:
            self.scheduler.drop_cache(sequence)
            sequence.slide(max(1, self.context // 2))

    def _end(
        self,
        sequence: TokenSequence,
        reason: FinishReason,
        *,
        ids: tuple[int, ...] = (),
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> Delta:
        if not sequence.text.stopped:
            text += sequence.text.feed(b"", final=True)
        del self._sequences[sequence.number]
        self.scheduler.remove(sequence)
        return Delta(sequence=sequence.number, ids=ids, text=text, logprobs=logprobs, finished=reason)

    def _fail(self, sequence: TokenSequence) -> Delta:
        """Ends a text whose logits are not finite, and wipes its blocks, so that it harms no other."""
        for block in sequence.blocks:
            self.blocks.forget(block)
        self.runner.cache.clear(sequence.blocks)
        return self._end(sequence, "error")
