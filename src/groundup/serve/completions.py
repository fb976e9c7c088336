"""OpenAI's ``/v1/completions``."""

from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from groundup.inference import sequence
from groundup.serve.openai_answer import OpenAIAnswer
from groundup.serve.openai_requests import CompletionFields
from groundup.serve.pieces import Piece
from groundup.serve.refusal import Refusal
from groundup.serve.service import Service


async def complete(service: Service, http: Request, fields: CompletionFields) -> Response:
    """Answers a request.

    Raises:
        Refusal: It cannot be served.
    """
    _require_served(service, fields)
    given = [fields.prompt] if isinstance(fields.prompt, str) else fields.prompt
    prompts = [given] if isinstance(given[0], int) else given
    ids = [
        await service.prompt_ids(prompt) if isinstance(prompt, str) else service.require_ids(prompt)
        for prompt in prompts
    ]
    requests = fields.requests_for(
        ids,
        max_new_tokens=16 if fields.max_tokens is None else fields.max_tokens,
        stop_ids=service.loaded.stop_ids,
        num_logprobs=fields.logprobs,
    )
    service.require(requests, prompt="prompt", new_tokens="max_tokens")
    shown = [prompt if isinstance(prompt, str) else service.text_of(prompt) for prompt in prompts]
    return await _Completion(service, fields, requests, shown).respond(http)


def _require_served(service: Service, fields: CompletionFields) -> None:
    service.require_model(fields.model)
    if fields.best_of not in (None, fields.n or 1):
        raise Refusal(422, "best_of other than n is not served", field="best_of", fix="Leave it out.")
    if fields.echo and fields.logprobs is not None:
        raise Refusal(422, "echo with logprobs is not served", field="echo", fix="Leave one of them out.")


class _Completion(OpenAIAnswer):
    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(
        self,
        service: Service,
        fields: CompletionFields,
        requests: Sequence[sequence.Request],
        shown: Sequence[str],
    ) -> None:
        super().__init__(service, fields, requests)
        self._echo = shown if fields.echo else None
        self._with_logprobs = fields.logprobs is not None

    def beginning(self, index: int) -> Piece | None:
        return Piece(self._echo[index // self.num_samples], ()) if self._echo else None

    def choice(self, index: int, piece: Piece, reason: str | None) -> dict[str, Any]:
        logprobs = self._logprobs(piece) if self._with_logprobs else None
        return {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": reason}

    chunk = choice

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        name = self.service.token_name
        known = [(token, token.logprob) for token in piece.tokens if token.logprob]
        return {
            "tokens": [name(token.number) for token, _ in known],
            "token_logprobs": [logprob.chosen for _, logprob in known],
            "top_logprobs": [{name(number): value for number, value in logprob.top} for _, logprob in known],
            "text_offset": [token.offset for token, _ in known],
        }
