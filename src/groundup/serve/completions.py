"""OpenAI's ``/v1/completions``."""

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Request, Response

from groundup.serve.answers import EventStream, unless_gone
from groundup.serve.engine_thread import Submission
from groundup.serve.openai_requests import CompletionFields
from groundup.serve.pieces import Piece, PieceCutter
from groundup.serve.refusal import Refusal, json_response
from groundup.serve.service import Service

FINISH_REASONS = {"stop": "stop", "length": "length", "context": "length"}
"""The engine's reasons by OpenAI's names."""


async def complete(service: Service, http: Request, fields: CompletionFields) -> Response:
    """Answers a request.

    Raises:
        Refusal: It cannot be served.
    """
    _require_served(service, fields)
    prompts = await _prompts(service, fields.prompt)
    requests = fields.requests_for(
        prompts,
        max_new_tokens=16 if fields.max_tokens is None else fields.max_tokens,
        stop_ids=service.loaded.stop_ids,
        num_logprobs=fields.logprobs,
    )
    service.require(requests, prompt="prompt", new_tokens="max_tokens")
    with contextlib.ExitStack() as resources:
        submission = resources.enter_context(service.engine.submit(requests))
        answer = _Answer(service, fields, prompts, submission)
        if fields.stream:
            return EventStream(answer.chunks(), resources.pop_all())
        return json_response(await unless_gone(http, answer.whole()))


def usage(prompts: Sequence[Sequence[int]], num_new: int) -> dict[str, int]:
    """Returns the numbers of tokens as OpenAI names them."""
    num_prompt = sum(map(len, prompts))
    return {"prompt_tokens": num_prompt, "completion_tokens": num_new, "total_tokens": num_prompt + num_new}


def _require_served(service: Service, fields: CompletionFields) -> None:
    service.require_model(fields.model)
    if fields.best_of not in (None, fields.n or 1):
        raise Refusal(422, "best_of other than n is not served", field="best_of", fix="Leave it out.")
    if not fields.max_tokens and fields.max_tokens is not None:
        raise Refusal(422, "no token is asked for", field="max_tokens", fix="Ask for 1 or more.")
    if fields.echo and fields.logprobs is not None:
        raise Refusal(422, "echo with logprobs is not served", field="echo", fix="Leave one of them out.")


async def _prompts(service: Service, given: str | list[str] | list[int] | list[list[int]]) -> list[list[int]]:
    """Returns the ids of each prompt."""
    if isinstance(given, str):
        given = [given]
    if isinstance(given[0], int):
        return [[number for number in given if isinstance(number, int)]]
    return [await service.prompt_ids(one) if isinstance(one, str) else list(map(int, one)) for one in given]


class _Answer:
    """The answer to one request, whole or in chunks."""

    def __init__(
        self,
        service: Service,
        fields: CompletionFields,
        prompts: Sequence[Sequence[int]],
        submission: Submission,
    ) -> None:
        self._service = service
        self._fields = fields
        self._prompts = prompts
        self._submission = submission
        self._num_new = 0
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.name,
        }

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the objects of a stream."""
        options = self._fields.stream_options
        with_usage = options is not None and options.include_usage
        blank = {"usage": None} if with_usage else {}
        async for choice in self._choices():
            yield {**self._head, "choices": [choice], **blank}
        if with_usage:
            yield {**self._head, "choices": [], "usage": usage(self._prompts, self._num_new)}

    async def whole(self) -> dict[str, Any]:
        """Returns the object of an answer at once."""
        joined: dict[int, dict[str, Any]] = {}
        async for choice in self._choices():
            before = joined.setdefault(choice["index"], choice)
            if before is not choice:
                before["text"] += choice["text"]
                before["finish_reason"] = choice["finish_reason"]
                for name, values in (choice["logprobs"] or {}).items():
                    before["logprobs"][name] += values
        choices = [joined[index] for index in sorted(joined)]
        return {**self._head, "choices": choices, "usage": usage(self._prompts, self._num_new)}

    async def _choices(self) -> AsyncIterator[dict[str, Any]]:
        cutters: dict[int, PieceCutter] = {}
        async for index, delta in self._submission:
            cutter = cutters.get(index)
            if cutter is None:
                echoed = self._echo(index)
                cutter = cutters[index] = PieceCutter(self._service.loaded.tokenizer.token_bytes, len(echoed))
                if echoed:
                    yield self._choice(index, Piece(echoed, ()), None)
            self._num_new += len(delta.ids)
            piece = cutter.cut(delta)
            if piece.text or piece.tokens or delta.finished:
                reason = FINISH_REASONS[delta.finished] if delta.finished else None
                yield self._choice(index, piece, reason)

    def _echo(self, index: int) -> str:
        if not self._fields.echo:
            return ""
        prompt = self._prompts[index // (self._fields.n or 1)]
        return self._service.shown_text(prompt)

    def _choice(self, index: int, piece: Piece, reason: str | None) -> dict[str, Any]:
        logprobs = self._logprobs(piece) if self._fields.logprobs is not None else None
        return {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        name = self._service.token_name
        known = [(token, token.logprob) for token in piece.tokens if token.logprob]
        return {
            "tokens": [name(token.number) for token, _ in known],
            "token_logprobs": [logprob.chosen for _, logprob in known],
            "top_logprobs": [{name(number): value for number, value in logprob.top} for _, logprob in known],
            "text_offset": [token.offset for token, _ in known],
        }
