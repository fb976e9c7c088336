"""Steps of generation: each continues all texts that are in work."""

import itertools
from collections import Counter, deque
from collections.abc import Sequence

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.errors import ConfigError
from groundup.inference.beam_search import BeamSearch
from groundup.inference.block_manager import BlockManager
from groundup.inference.device_model import DeviceModel, text_vocab_size
from groundup.inference.request_rules import require_possible, with_stop_tokens
from groundup.inference.runner import Runner, StepModel
from groundup.inference.sampler import TokenLogprob, logprobs_of, sample_each, without_followers
from groundup.inference.scheduler import Scheduler
from groundup.inference.sequence import Delta, FinishReason, Request, TokenSequence
from groundup.inference.text_stream import TextStream

BLOCK_SIZE = 16
"""Tokens of a cache block."""

_STEP_TOKENS = {"cpu": 256, "cuda": 2048}


class StepEngine:
    """Continues texts step by step; they join and leave the batch at any step. For one thread.

    Args:
        loaded: Model and tokenizer. A model in training is put into evaluation mode while the engine works.
        dtype: In which the model computes; one other than its weights' makes a copy of them.
        max_batch_size: Most texts that are worked on together.
        max_step_tokens: Most tokens of a step: the larger, the sooner a prompt is read; the smaller, the less
            others wait for it. 0 for 256 on a CPU, 2048 on a GPU.
        cache_bytes: Memory for keys and values; less where so many texts of a whole context need less.
        model: What computes, in this dtype; by default the loaded model on its device.
        owns_model: Whether the loaded model is the engine's, which may then leave nothing of it to others.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        dtype: torch.dtype = torch.float32,
        max_batch_size: int = 64,
        max_step_tokens: int = 0,
        cache_bytes: int = 1 << 30,
        model: StepModel | None = None,
        owns_model: bool = False,
    ) -> None:
        config = loaded.config
        self.config = config
        self.tokenizer = loaded.tokenizer
        self.vocab_size = text_vocab_size(loaded)
        if model is None:
            model = DeviceModel(
                loaded.model, config, vocab_size=self.vocab_size, dtype=dtype, owns_model=owns_model
            )
        block_bytes = BLOCK_SIZE * model.bytes_per_token
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
            max_step_tokens=max_step_tokens or _STEP_TOKENS[next(loaded.model.parameters()).device.type],
        )
        model.allocate(num_blocks, BLOCK_SIZE)
        self.runner = Runner(model)
        self._dtype = dtype
        self._numbers = itertools.count()
        self._sequences: dict[int, TokenSequence] = {}
        self._searches: dict[int, BeamSearch] = {}
        self._inboxes: dict[int, deque[Delta]] = {}  # of texts that are read one after the other

    def add(self, request: Request) -> int:
        """Queues a request; it joins the batch at the next step. Returns the number of its text.

        Raises:
            DataError, ConfigError: As ``check``.
        """
        self.check(request)
        request = with_stop_tokens(request, self.tokenizer.special_tokens)
        number = next(self._numbers)
        if request.num_beams > 1:
            search = self._searches[number] = BeamSearch(number, request, self.context)
            sequence = search.beams[0]
        else:
            sequence = self._sequences[number] = TokenSequence(number, request)
            self._fit(sequence)
        self.scheduler.add(sequence)
        return number

    def abort(self, number: int) -> None:
        """Ends a text, of which no more deltas come, and frees what it holds; nothing if it has ended."""
        self._free(number)

    def _free(self, number: int) -> None:
        for sequence in self._members(number):
            self.scheduler.remove(sequence)
        self._sequences.pop(number, None)
        self._searches.pop(number, None)

    def step(self) -> list[Delta]:
        """Does the work of one step; returns what it added to the texts.

        Nothing when no text is in work.
        """
        work = self.scheduler.schedule()
        if not work:
            return []
        found = self.runner.run(work)
        self.scheduler.computed(work)
        # A sum is the cheapest look at all; of logits that are not finite any token could be drawn, or none.
        finite = found.next_RV.sum(-1).isfinite().tolist()
        broken = {one.number for one, sound in zip(found.sequences, finite, strict=True) if not sound}
        for sequence, positions, logits_RV in found.prompts:
            if logits_RV.sum(-1).isfinite().all():
                _note_prompt(sequence, positions, logits_RV)
            else:
                broken.add(sequence.number)
        deltas = [self._fail(number) for number in sorted(broken)]
        drawing: list[int] = []
        for row, sequence in enumerate(found.sequences):
            if sequence.number in broken:
                continue
            if search := self._searches.get(sequence.number):
                if search.feed(sequence, found.next_RV[row]):
                    deltas += self._advance_search(search)
            elif not sequence.num_wanted:
                deltas.append(self._end(sequence, "length"))
            else:
                drawing.append(row)
        if drawing:
            logits_RV = found.next_RV if len(drawing) == len(finite) else found.next_RV[drawing]
            deltas += self._draw([found.sequences[row] for row in drawing], logits_RV)
        return deltas

    def _draw(self, sequences: Sequence[TokenSequence], logits_RV: Tensor) -> list[Delta]:
        """Draws the next token of each text."""
        logits_RV = without_followers(
            logits_RV, [(one.tokens[-1], one.request.never_after) for one in sequences]
        )
        ids = sample_each(
            logits_RV,
            [one.sampling for one in sequences],
            [one.generator for one in sequences],
            [one.tokens for one in sequences],
        )
        logprobs = logprobs_of(logits_RV, ids, [one.request.num_logprobs for one in sequences])
        return [
            self._advance(sequence, number, logprob)
            for sequence, number, logprob in zip(sequences, ids, logprobs, strict=True)
        ]

    def check(self, request: Request) -> None:
        """Refuses what cannot be generated.

        Raises:
            DataError, ConfigError: As ``require_possible``.
        """
        require_possible(
            with_stop_tokens(request, self.tokenizer.special_tokens),
            context=self.context,
            max_batch_size=self.scheduler.max_batch_size,
            model_ids=self.config.vocab_size,
            text_ids=self.vocab_size,
            empty=self.tokenizer.end_of_document_id,
        )

    def _advance(self, sequence: TokenSequence, number: int, logprob: TokenLogprob | None) -> Delta:
        """Adds a drawn token to its text."""
        request = sequence.request
        if number in request.stop_ids:
            return self._end(sequence, "stop", stop_id=number)
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
            return Delta(
                sequence=sequence.number,
                ids=(number,),
                text=text,
                logprobs=logprobs,
                prompt_logprobs=sequence.take_prompt_logprobs(),
            )
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
        stop_id: int | None = None,
    ) -> Delta:
        if not sequence.text.stopped:
            text += sequence.text.feed(b"", final=True)
        self._free(sequence.number)
        return Delta(
            sequence=sequence.number,
            ids=ids,
            text=text,
            logprobs=logprobs,
            prompt_logprobs=sequence.take_prompt_logprobs(),
            finished=reason,
            stop_id=stop_id,
        )

    def _fail(self, number: int) -> Delta:
        """Ends a text whose logits are not finite, and wipes its own blocks, so that it harms no other."""
        members = self._members(number)
        held = Counter(block for sequence in members for block in sequence.blocks)
        own = [block for block, count in held.items() if self.blocks.num_owners(block) == count]
        for block in own:
            self.blocks.forget(block)
        self.runner.clear(own)
        if number in self._sequences:
            return self._end(self._sequences[number], "error")
        self._free(number)
        return Delta(sequence=number, ids=(), text="", finished="error")

    def _members(self, number: int) -> list[TokenSequence]:
        """Returns the texts of a request that are in work."""
        if search := self._searches.get(number):
            return search.beams
        return [self._sequences[number]] if number in self._sequences else []

    def _advance_search(self, search: BeamSearch) -> list[Delta]:
        """Continues the beams that were chosen; of the others, what they hold is freed."""
        number, chosen = search.beams[0].number, search.advance()
        if not chosen:
            texts = [TextStream().feed(self._bytes(ids), final=True) for ids in search.found_ids]
            beams = search.results(texts)
            self._free(number)
            best = beams[0]
            return [Delta(sequence=number, ids=best.ids, text=best.text, beams=beams, finished=best.finished)]
        continued = {index for index, _ in chosen}
        for index, beam in enumerate(search.beams):
            beam.num_places = 1
            if index not in continued:
                self.scheduler.remove(beam)
        following: list[TokenSequence] = []
        for index, _ in chosen:
            beam = search.beams[index]
            following.append(self.scheduler.fork(beam, self.runner.copy) if beam in following else beam)
        for beam, (_, token) in zip(following, chosen, strict=True):
            beam.tokens.append(token)
            beam.is_held = False
        search.beams = following
        return []

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self.tokenizer.token_bytes, ids))


def _note_prompt(sequence: TokenSequence, positions: range, logits_RV: Tensor) -> None:
    """Records the log-probabilities of the prompt's tokens after these positions."""
    ids = sequence.window(positions.start + 1, positions.stop + 1)
    found = logprobs_of(logits_RV, ids, [sequence.request.num_prompt_logprobs] * len(ids))
    sequence.prompt_logprobs += [logprob for logprob in found if logprob is not None]
