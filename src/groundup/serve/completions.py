"""OpenAI's ``/v1/completions``."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from groundup.inference import sequence
from groundup.serve.openai_answer import OpenAIAnswer
from groundup.serve.openai_requests import CompletionFields
from groundup.serve.pieces import Piece, PieceCutter
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
        num_prompt_logprobs=fields.logprobs if fields.echo else None,
    )
    service.require(requests, prompt="prompt", new_tokens="max_tokens")
    shown = [prompt if isinstance(prompt, str) else service.text_of(prompt) for prompt in prompts]
    return await _Completion(service, fields, requests, shown).respond(http)


def _require_served(service: Service, fields: CompletionFields) -> None:
    service.require_model(fields.model)
    if fields.best_of not in (None, fields.n or 1):
        raise Refusal(422, "best_of other than n is not served", field="best_of", fix="Leave it out.")
    if fields.max_tokens == 0 and not (fields.echo and fields.logprobs is not None):
        raise Refusal(
            422,
            "no token is asked for",
            field="max_tokens",
            fix="Ask for 1 or more, or for echo and logprobs.",
        )


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
        given = fields.prompt[0] if isinstance(fields.prompt, list) else fields.prompt
        self._is_text = isinstance(given, str)

    def beginning(self, index: int, delta: sequence.Delta) -> Piece | None:
        if self._echo is None:
            return None
        text = self._echo[index // self.num_samples]
        if not self._with_logprobs:
            return Piece(text, ())
        cutter = PieceCutter(self.service.loaded.tokenizer.token_bytes)
        tokens = cutter.locate(self.requests[index].prompt, (None, *delta.prompt_logprobs))
        shift = cutter.decoded - len(text)  # the space that some tokenizers put before a text
        hidden = len(self.service.loaded.bos_ids) if tokens and self._is_text else 0
        return Piece(
            text,
            tuple(dataclasses.replace(one, offset=max(0, one.offset - shift)) for one in tokens[hidden:]),
        )

    def choice(self, index: int, piece: Piece, reason: str | None) -> dict[str, Any]:
        logprobs = self._logprobs(piece) if self._with_logprobs else None
        return {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": reason}

    chunk = choice

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        name = self.service.token_name
        logprobs = [token.logprob for token in piece.tokens]
        return {
            "tokens": [name(token.number) for token in piece.tokens],
            "token_logprobs": [one and one.chosen for one in logprobs],
            "top_logprobs": [one and {name(number): value for number, value in one.top} for one in logprobs],
            "text_offset": [token.offset for token in piece.tokens],
        }
