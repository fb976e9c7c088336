"""OpenAI's ``/v1/chat/completions``."""

from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from groundup.inference import sequence
from groundup.inference.chat_template import TemplateRefusal
from groundup.serve.openai_answer import OpenAIAnswer
from groundup.serve.openai_requests import ChatFields
from groundup.serve.pieces import Piece, SentToken
from groundup.serve.refusal import Refusal
from groundup.serve.service import Service


async def converse(service: Service, http: Request, fields: ChatFields) -> Response:
    """Answers a request.

    Raises:
        Refusal: It cannot be served.
    """
    service.require_model(fields.model)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise Refusal(422, "is given without logprobs: true", field="top_logprobs")
    if service.chat_template is None:
        raise Refusal(400, "the model has no chat template", fix="Ask /v1/completions.")
    messages = [{"role": one.role, "content": one.text} for one in fields.messages]
    try:
        parts = service.chat_template.render(messages)
    except TemplateRefusal as error:
        raise Refusal(422, error.what, field="messages") from None
    ids: list[int] = []
    for part in parts:
        ids += [part] if isinstance(part, int) else await service.encode(part)
    given = fields.max_completion_tokens or fields.max_tokens
    limit = service.limits.new_tokens or service.context
    requests = fields.requests_for(
        [ids],
        max_new_tokens=given or max(1, min(limit, service.context - len(ids))),
        stop_ids=service.loaded.stop_ids,
        num_logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
    )
    name = "max_completion_tokens" if fields.max_completion_tokens else "max_tokens"
    service.require(requests, prompt="messages", new_tokens=name)
    return await _ChatCompletion(service, fields, requests).respond(http)


class _ChatCompletion(OpenAIAnswer):
    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, service: Service, fields: ChatFields, requests: Sequence[sequence.Request]) -> None:
        super().__init__(service, fields, requests)
        self._with_logprobs = fields.logprobs
        self._begun: set[int] = set()

    def choice(self, index: int, piece: Piece, reason: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": piece.text}
        return {"index": index, "message": message, **self._rest(piece, reason)}

    def chunk(self, index: int, piece: Piece, reason: str | None) -> dict[str, Any]:
        delta = {"content": piece.text}
        if index not in self._begun:
            self._begun.add(index)
            delta = {"role": "assistant", **delta}
        return {"index": index, "delta": delta, **self._rest(piece, reason)}

    def _rest(self, piece: Piece, reason: str | None) -> dict[str, Any]:
        logprobs = {"content": list(map(self._logprob, piece.tokens))} if self._with_logprobs else None
        return {"logprobs": logprobs, "finish_reason": reason}

    def _logprob(self, token: SentToken) -> dict[str, Any]:
        assert token.logprob, "it was asked for"
        top = [self._named(number, value) for number, value in token.logprob.top]
        return {**self._named(token.number, token.logprob.chosen), "top_logprobs": top}

    def _named(self, number: int, value: float) -> dict[str, Any]:
        data = self.service.token_bytes(number)
        return {"token": self.service.token_name(number), "logprob": value, "bytes": list(data)}
