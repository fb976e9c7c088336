"""Generates many texts at once: requests in, pieces of text out."""

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence

from groundup.core.errors import CheckpointError
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Delta, Generation, Request
from groundup.inference.step_engine import BLOCK_SIZE, StepEngine

__all__ = ["BLOCK_SIZE", "Engine"]


class Engine(StepEngine):
    """Completes prompts with one model; texts join and leave the batch at any step.

    ``generate``, ``complete`` and ``stream`` are for one caller. A service uses ``add``, ``step`` and
    ``abort``, from one thread, and hands out the deltas itself. The settings are those of ``StepEngine``.
    """

    @property
    def max_batch_size(self) -> int:
        """Returns how many texts are worked on together at most."""
        return self.scheduler.max_batch_size

    def abort(self, number: int) -> None:
        """Ends a text, of which no more deltas come, and frees what it holds; nothing if it has ended."""
        self._inboxes.pop(number, None)
        super().abort(number)

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
        return self._stream(request)

    def _stream(self, request: Request) -> Iterator[Delta]:
        # Not a generator expression: Python 3.12 closes such a one without closing what it reads from.
        yield from self._read(self._open(request))

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
