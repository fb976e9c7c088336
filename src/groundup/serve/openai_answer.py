"""Answers of OpenAI's API, whole or as a stream, whichever kind of completion."""

import abc
import contextlib
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any, ClassVar

from fastapi import Request, Response

from groundup.inference import sequence
from groundup.serve.answers import EventStream, unless_gone
from groundup.serve.openai_requests import CommonFields
from groundup.serve.pieces import Piece, PieceCutter
from groundup.serve.refusal import json_response
from groundup.serve.service import Service

_FINISH_REASONS = {"stop": "stop", "length": "length", "context": "length"}
"""The engine's reasons -> OpenAI's."""


class OpenAIAnswer(abc.ABC):
    """The answer to one request.

    Args:
        service: Of the model.
        fields: The request.
        requests: Its texts, ``n`` of each prompt.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, service: Service, fields: CommonFields, requests: Sequence[sequence.Request]) -> None:
        self.service = service
        self.num_samples = fields.n or 1
        self.requests = requests
        self._fields = fields
        self._num_new = 0
        self._head = {
            "id": f"{self.id_prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": service.name,
        }

    @abc.abstractmethod
    def choice(self, index: int, piece: Piece, reason: str | None) -> dict[str, Any]:
        """Returns a text as a client gets it at once."""

    @abc.abstractmethod
    def chunk(self, index: int, piece: Piece, reason: str | None) -> dict[str, Any]:
        """Returns a piece of a text as a client gets it in a stream."""

    def beginning(self, index: int, delta: sequence.Delta) -> Piece | None:
        """Returns what is sent of a text before its first delta."""
        return None

    async def respond(self, http: Request) -> Response:
        """Generates and answers.

        Raises:
            Refusal: The service is busy, or a text failed.
        """
        with contextlib.ExitStack() as resources:
            submission = resources.enter_context(self.service.engine.submit(self.requests))
            if self._fields.stream:
                return EventStream(self._chunks(self._pieces(submission)), resources.pop_all())
            return json_response(await unless_gone(http, self._whole(self._pieces(submission))))

    async def _chunks(self, pieces: "_Pieces") -> AsyncIterator[dict[str, Any]]:
        head = {**self._head, "object": self.chunk_object}
        options = self._fields.stream_options
        with_usage = options is not None and options.include_usage
        blank = {"usage": None} if with_usage else {}
        async for index, piece, reason in pieces:
            yield {**head, "choices": [self.chunk(index, piece, reason)], **blank}
        if with_usage:
            yield {**head, "choices": [], "usage": self._usage()}

    async def _whole(self, pieces: "_Pieces") -> dict[str, Any]:
        joined: list[list[Piece]] = [[] for _ in self.requests]
        reasons: list[str | None] = [None] * len(self.requests)
        async for index, piece, reason in pieces:
            joined[index].append(piece)
            reasons[index] = reason
        choices = [
            self.choice(index, Piece.joined(own), reason)
            for index, (own, reason) in enumerate(zip(joined, reasons, strict=True))
        ]
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": self._usage()}

    async def _pieces(self, submission: AsyncIterable[tuple[int, sequence.Delta]]) -> "_Pieces":
        cutters: dict[int, PieceCutter] = {}
        async for index, delta in submission:
            if index not in cutters:
                begin = self.beginning(index, delta)
                token_bytes = self.service.loaded.tokenizer.token_bytes
                cutters[index] = PieceCutter(token_bytes, len(begin.text) if begin else 0)
                if begin:
                    yield index, begin, None
            self._num_new += len(delta.ids)
            piece = cutters[index].cut(delta)
            if piece.text or piece.tokens or delta.finished:
                yield index, piece, _FINISH_REASONS[delta.finished] if delta.finished else None

    def _usage(self) -> dict[str, int]:
        num_prompt = sum(len(request.prompt) for request in self.requests[:: self.num_samples])
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self._num_new,
            "total_tokens": num_prompt + self._num_new,
        }


_Pieces = AsyncIterator[tuple[int, Piece, str | None]]
