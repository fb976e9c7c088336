"""Beam search: the k most probable texts so far go on together, and the best finished ones are kept.

As ``transformers.generate(num_beams=k)`` and Megatron-LM's server do it: a text that ends among the k best
continuations is finished, with the sum of its log-probabilities divided by its number of new tokens (the stop
id counts) to the power of the length penalty; the search ends when no open text is better, at its present
length, than the worst of k finished ones.

Shapes: K beams, V true vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from groundup.inference.sequence import Beam, FinishReason, Request, TokenSequence


@dataclasses.dataclass(frozen=True)
class _Finished:
    score: float
    ids: tuple[int, ...]
    reason: FinishReason


class BeamSearch:
    """One request in work, and its open texts.

    Args:
        number: Of the request in the engine.
        request: Has ``num_beams`` of more than one.
        context: Tokens that the model can see at once.
    """

    def __init__(self, number: int, request: Request, context: int) -> None:
        self.request = request
        self.beams = [TokenSequence(number, request)]
        self.beams[0].num_places = request.num_beams
        self._room = context + 1 - len(request.prompt)  # the last token need not be seen
        self._num_new = 0
        self._scores_K = torch.zeros(1)
        self._logits: dict[int, Tensor] = {}
        self._finished: list[_Finished] = []

    def feed(self, sequence: TokenSequence, logits_V: Tensor) -> bool:
        """Takes what follows one of the beams, which then waits; returns whether all others wait too."""
        sequence.is_held = True
        self._logits[id(sequence)] = logits_V
        return all(beam.is_held for beam in self.beams)

    def advance(self) -> list[tuple[int, int]]:
        """Chooses the next tokens, when all beams wait.

        Returns:
            For each next beam the index of the present one that it continues, and its token; none when the
            search has ended.
        """
        request, size = self.request, self.request.num_beams
        logits_KV = torch.stack([self._logits[id(beam)] for beam in self.beams]).float()
        self._logits = {}
        scores_KV = logits_KV.log_softmax(-1) + self._scores_K.to(logits_KV.device).unsqueeze(1)
        # Enough that as many go on, even if every one of them could end by each of the stop ids.
        count = min(max(2, 1 + len(request.stop_ids)) * size, scores_KV.numel())
        top = scores_KV.flatten().topk(count)
        self._num_new += 1
        is_last = self._num_new == min(request.max_new_tokens, self._room)
        open_beams: list[tuple[int, int]] = []
        open_scores: list[float] = []
        for rank, (score, index) in enumerate(zip(top.values.tolist(), top.indices.tolist(), strict=True)):
            beam, number = divmod(index, scores_KV.shape[1])
            if is_last or number in request.stop_ids:
                if rank < size:
                    self._finish(self.beams[beam], number, score)
            elif len(open_beams) < size:
                open_beams.append((beam, number))
                open_scores.append(score)
        if not open_beams or not self._can_improve(open_scores[0]):
            return []
        self._scores_K = torch.tensor(open_scores)
        return open_beams

    def results(self, texts: Sequence[str]) -> tuple[Beam, ...]:
        """Returns what was found, the best first, with these texts in the order of ``found_ids``."""
        return tuple(
            Beam(ids=one.ids, text=text, score=one.score, finished=one.reason)
            for one, text in zip(self._finished, texts, strict=True)
        )

    @property
    def found_ids(self) -> list[tuple[int, ...]]:
        """Returns the new tokens of all finished texts, the best first."""
        return [one.ids for one in self._finished]

    def _finish(self, beam: TokenSequence, number: int, score: float) -> None:
        request = self.request
        ids = tuple(beam.tokens[len(request.prompt) :])
        reason: FinishReason = "length" if self._num_new == request.max_new_tokens else "context"
        if number in request.stop_ids:
            reason = "stop"
        else:
            ids += (number,)
        found = _Finished(self._with_penalty(score), ids, reason)
        # Stable: of equal ones the first stays.
        self._finished = sorted([*self._finished, found], key=lambda one: -one.score)[: request.num_beams]

    def _can_improve(self, score: float) -> bool:
        is_full = len(self._finished) == self.request.num_beams
        return not is_full or self._with_penalty(score) > self._finished[-1].score

    def _with_penalty(self, score: float) -> float:
        penalised: float = score / self._num_new**self.request.length_penalty
        return penalised
