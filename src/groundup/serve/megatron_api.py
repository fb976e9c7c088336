"""Megatron-LM's ``PUT /api``."""

import secrets
from typing import Any

import orjson
import pydantic
from fastapi import Request, Response

from groundup.inference import sequence
from groundup.inference.sampler import Sampling
from groundup.serve.answers import unless_gone
from groundup.serve.megatron_fields import FieldError, MegatronFields, read_fields
from groundup.serve.refusal import Refusal, json_response
from groundup.serve.service import Service

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
    _require_served(fields)
    hidden = () if fields.add_BOS else service.loaded.bos_ids
    begin = [service.loaded.bos_id] if fields.add_BOS else list(hidden)
    prompts = [[*begin, *await service.encode(prompt)] for prompt in fields.prompts]
    if max(map(len, prompts)) + fields.tokens_to_generate > service.context:
        raise FieldError(TOO_LONG)
    requests = _requests(service, fields, prompts)
    service.require(requests, prompt="prompts", new_tokens="tokens_to_generate")
    names = [[service.token_bytes(number) for number in prompt[len(hidden) :]] for prompt in prompts]
    texts = [fields.add_BOS * names[row][0].decode() + prompt for row, prompt in enumerate(fields.prompts)]
    new: list[list[bytes]] = [[] for _ in prompts]
    ended: set[int] = set()
    with service.engine.submit(requests) as submission:
        async for row, delta in submission:
            if row in ended:
                continue
            new[row] += map(service.token_bytes, delta.ids)
            if delta.finished == "stop":  # theirs shows the end of a document
                new[row].append(service.token_bytes(service.loaded.tokenizer.end_of_document_id))
            elif delta.ids and _ends(fields, [*names[row][-1:], *new[row][-2:]]):
                ended.add(row)
                submission.abort({row})
    return {  # in the order of theirs
        "logprobs": None,
        "segments": [
            [_as_text(token) for token in (*before, *added)] for before, added in zip(names, new, strict=True)
        ],
        "text": [text + _as_text(b"".join(added)) for text, added in zip(texts, new, strict=True)],
    }


def _require_served(fields: MegatronFields) -> None:
    if fields.logprobs:
        raise Refusal(400, "is not served", field="logprobs")
    if fields.beam_width is not None:
        raise Refusal(400, "is not served", field="beam_width")
    if fields.top_p_decay or fields.top_p_bound:
        raise Refusal(400, "is not served", field="top_p_decay")
    if fields.prevent_newline_after_colon:
        raise Refusal(400, "is not served", field="prevent_newline_after_colon")


def _requests(service: Service, fields: MegatronFields, prompts: list[list[int]]) -> list[sequence.Request]:
    sampling = Sampling(temperature=fields.temperature, top_k=fields.top_k, top_p=fields.top_p)
    seed = secrets.randbits(62) if fields.random_seed < 0 else fields.random_seed
    return [
        sequence.Request(
            prompt=prompt,
            sampling=Sampling(temperature=0) if fields.top_k == 1 else sampling,
            max_new_tokens=int(fields.tokens_to_generate),
            seed=seed + row,
            stop_ids=(service.loaded.tokenizer.end_of_document_id,),
        )
        for row, prompt in enumerate(prompts)
    ]


def _ends(fields: MegatronFields, tokens: list[bytes]) -> bool:
    """Tells whether a text ends at its newest token by the rules on lines."""
    is_double = tokens[-1] == b"\n\n"
    if fields.stop_on_double_eol:
        return is_double or tokens[-2:] == [b"\n", b"\n"]
    return fields.stop_on_eol and (is_double or tokens[-1] == b"\n")


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
