"""Megatron-LM's ``PUT /api``."""

import secrets
from collections.abc import Sequence
from typing import Any

import orjson
import pydantic
from fastapi import Request, Response

from groundup.core.errors import DataError
from groundup.inference import sequence
from groundup.inference.sampler import Sampling
from groundup.serve.answers import unless_gone
from groundup.serve.megatron_fields import FieldError, MegatronFields, read_fields
from groundup.serve.refusal import Refusal, json_response
from groundup.serve.service import Service
from groundup.tokens.tokenizer.word_list import end_ids

OPENAPI = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": pydantic.TypeAdapter(MegatronFields).json_schema(),
                "example": {"prompts": ["Hello world"], "tokens_to_generate": 1},
            }
        },
    }
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The texts, or as a string the rule that the request breaks."}
}
MAX_LENGTH_PENALTY = 20
"""Beyond, lengths to this power are no numbers any more."""
TOO_LONG = "Length of prompt + tokens_to_generate longer than allowed"


async def answer(service: Service, http: Request) -> Response:
    """Answers a request.

    Raises:
        Refusal: It cannot be served, by a rule that Megatron-LM does not have.
    """
    try:
        body = orjson.loads(await http.body())
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the body is not JSON ({error})") from None
    try:
        fields = read_fields(body)
        return json_response(await unless_gone(http, _generate(service, fields)))
    except FieldError as error:
        return json_response(error.what, status=error.status)


async def _generate(service: Service, fields: MegatronFields) -> dict[str, Any]:
    _require_served(service, fields)
    hidden = () if fields.add_BOS else service.loaded.bos_ids
    begin = [service.loaded.bos_id] if fields.add_BOS else list(hidden)
    prompts = [[*begin, *await service.encode(prompt)] for prompt in fields.prompts]
    if max(map(len, prompts)) + fields.tokens_to_generate > service.context:
        raise FieldError(TOO_LONG)
    requests = [_request(service, fields, prompt, row) for row, prompt in enumerate(prompts)]
    service.require(requests, prompt="prompts", new_tokens="tokens_to_generate")
    shown = [prompt[len(hidden) :] for prompt in prompts]
    texts = [
        fields.add_BOS * _as_text(service, ids[:1]) + text
        for ids, text in zip(shown, fields.prompts, strict=True)
    ]
    if requests[0].num_beams > 1:
        return await _search(service, requests[0], texts[0], shown[0])
    added, logprobs = await _draw(service, fields, requests)
    segments = [
        [_as_text(service, [number]) for number in (*ids, *new)]
        for ids, new in zip(shown, added, strict=True)
    ]
    answer: dict[str, Any] = {"segments": segments}
    answer["text"] = [text + _as_text(service, new) for text, new in zip(texts, added, strict=True)]
    if fields.beam_width is not None:
        length = max(1, len(added[0]))
        return {"scores": [sum(logprobs[0][-length:]) / length**fields.length_penalty], **answer}
    return {"logprobs": [row[len(hidden) :] for row in logprobs] if fields.logprobs else None, **answer}


async def _draw(
    service: Service, fields: MegatronFields, requests: Sequence[sequence.Request]
) -> tuple[list[list[int]], list[list[float]]]:
    """Generates; returns the new ids of each text, its last one included, and all log-probabilities."""
    added: list[list[int]] = [[] for _ in requests]
    logprobs: list[list[float]] = [[] for _ in requests]
    ended: set[int] = set()
    with service.engine.submit(requests) as submission:
        async for row, delta in submission:
            if row in ended:
                continue
            added[row] += delta.ids
            logprobs[row] += (one.chosen for one in (*delta.prompt_logprobs, *delta.logprobs))
            last = [*requests[row].prompt[-1:], *added[row]][-2:]
            if delta.ids and _is_last(service, fields, last):
                ended.add(row)
                submission.abort({row})
    return added, logprobs


async def _search(
    service: Service, request: sequence.Request, text: str, shown: Sequence[int]
) -> dict[str, Any]:
    """Searches with beams; the best text comes first."""
    beams: tuple[sequence.Beam, ...] = ()
    with service.engine.submit([request]) as submission:
        async for _, delta in submission:
            beams = delta.beams
    return {
        "scores": [beam.score for beam in beams],
        "segments": [[_as_text(service, [number]) for number in (*shown, *beam.ids)] for beam in beams],
        "text": [text + _as_text(service, beam.ids) for beam in beams],
    }


def _require_served(service: Service, fields: MegatronFields) -> None:
    if (fields.beam_width or 0) > service.max_batch_size:
        raise Refusal(422, f"is more than {service.max_batch_size}", field="beam_width")
    if abs(fields.length_penalty) > MAX_LENGTH_PENALTY:
        raise Refusal(422, f"is beyond {MAX_LENGTH_PENALTY}", field="length_penalty")
    if fields.prevent_newline_after_colon and (fields.beam_width or 0) > 1:
        raise Refusal(422, "is not served with beams", field="prevent_newline_after_colon")


def _request(service: Service, fields: MegatronFields, prompt: list[int], row: int) -> sequence.Request:
    num_beams = int(fields.beam_width or 0)
    is_greedy = fields.top_k == 1 or num_beams
    seed = secrets.randbits(62) if fields.random_seed < 0 else fields.random_seed
    return sequence.Request(
        prompt=prompt,
        sampling=Sampling(temperature=0)
        if is_greedy
        else Sampling(temperature=fields.temperature, top_k=fields.top_k, top_p=fields.top_p),
        max_new_tokens=int(fields.tokens_to_generate),
        seed=seed + row,
        stop_ids=(_stop_id(service, fields),) if num_beams > 1 else (),  # else `_is_last` says, and shows it
        num_logprobs=0 if num_beams == 1 or (fields.logprobs and not num_beams) else None,
        num_prompt_logprobs=0 if fields.logprobs and not num_beams else None,
        top_p_decay=fields.top_p_decay or 1.0,
        top_p_bound=fields.top_p_bound if fields.top_p_decay else 0.0,
        never_after=_colon_and_newline(service) if fields.prevent_newline_after_colon else None,
        num_beams=max(1, num_beams),
        length_penalty=fields.length_penalty if num_beams > 1 else 1.0,
    )


def _colon_and_newline(service: Service) -> tuple[int, int]:
    encode = service.loaded.tokenizer.encode
    try:
        return encode(":")[-1], encode("\n")[-1]
    except (DataError, IndexError):
        raise Refusal(422, "the vocabulary has not both", field="prevent_newline_after_colon") from None


def _stop_id(service: Service, fields: MegatronFields) -> int:
    """Returns the id that ends a text; theirs takes that of GPT-2 whatever the tokenizer is."""
    if fields.beam_width is None or fields.stop_token is None:
        return next(iter(end_ids(service.loaded.tokenizer)), -1)  # which no token has
    return int(fields.stop_token)


def _is_last(service: Service, fields: MegatronFields, ids: Sequence[int]) -> bool:
    """Tells whether a text ends with these ids."""
    if ids[-1] == _stop_id(service, fields):
        return True
    tokens = list(map(service.token_bytes, ids))
    is_double = tokens[-1] == b"\n\n"
    if fields.stop_on_double_eol:
        return is_double or tokens[-2:] == [b"\n", b"\n"]
    return fields.stop_on_eol and (is_double or tokens[-1] == b"\n")


def _as_text(service: Service, ids: Sequence[int]) -> str:
    return b"".join(map(service.token_bytes, ids)).decode("utf-8", errors="replace")
