"""The fields of Megatron-LM's ``PUT /api``, checked in its order, with its texts and status codes.

After the rules on prompts its server answers with the text and status 200 (commit 992da75,
megatron/text_generation_server.py), so its clients look at the body.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from groundup.core.errors import GroundupError

MAX_PROMPTS = 128


class FieldError(GroundupError):
    """A request that breaks a rule.

    Args:
        text: That Megatron-LM answers.
        status: Of the answer.
    """

    def __init__(self, text: str, status: int = 200) -> None:
        super().__init__(text)
        self.status = status


@dataclasses.dataclass(frozen=True)
class MegatronFields:
    """A request, with Megatron-LM's names, meanings and defaults.

    ``no_log`` has no effect: what clients write is never logged here.
    """

    prompts: list[str]
    tokens_to_generate: int = 64
    logprobs: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    top_p_decay: float = 0.0
    top_p_bound: float = 0.0
    add_BOS: bool = False
    stop_on_double_eol: bool = False
    stop_on_eol: bool = False
    prevent_newline_after_colon: bool = False
    random_seed: int = -1
    no_log: bool = False
    beam_width: int | None = None
    stop_token: int | None = None
    length_penalty: float = 1.0


def read_fields(body: Any) -> MegatronFields:
    """Checks a request as Megatron-LM's server does.

    Raises:
        FieldError: The first rule that it breaks.
    """
    if not isinstance(body, dict):
        raise FieldError("the body is not a JSON object", 400)
    for status, rules in ((400, _rules_of_prompts), (200, _rules_of_draws), (200, _rules_of_ends)):
        for holds, text in rules(body):
            if not holds:
                raise FieldError(text, status)
    names = {field.name for field in dataclasses.fields(MegatronFields)}
    return MegatronFields(**{name: value for name, value in body.items() if name in names})


def _rules_of_prompts(body: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    yield "prompts" in body, "prompts argument required"
    yield "max_len" not in body, "max_len is no longer used.  Replace with tokens_to_generate"
    yield "sentences" not in body, "sentences is no longer used.  Replace with prompts"
    prompts = body["prompts"]
    yield isinstance(prompts, list), "prompts is not a list of strings"
    yield len(prompts) > 0, "prompts is empty"
    yield len(prompts) <= MAX_PROMPTS, f"Maximum number of prompts is {MAX_PROMPTS}"
    # Theirs fails with status 500 here.
    yield all(isinstance(prompt, str) for prompt in prompts), "prompts is not a list of strings"


def _rules_of_draws(body: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    count = body.get("tokens_to_generate", 64)
    yield isinstance(count, int), "tokens_to_generate must be an integer greater than 0"
    yield count >= 0, "tokens_to_generate must be an integer greater than or equal to 0"
    yield _is_bool(body, "logprobs")
    yield count > 0 or body.get("logprobs", False), "tokens_to_generate=0 implies logprobs should be True"
    temperature = body.get("temperature", 1.0)
    is_temperature = type(temperature) in (int, float) and 0.0 < temperature <= 100.0
    yield is_temperature, "temperature must be a positive number less than or equal to 100.0"
    top_k = body.get("top_k", 0)
    bounds = "equal to or greater than 0 and less than or equal to 1000"
    yield type(top_k) is int, f"top_k must be an integer {bounds}"
    yield 0 <= top_k <= 1000, f"top_k must be {bounds}"
    top_p = body.get("top_p", 0.0)
    yield type(top_p) is float, "top_p must be a positive float less than or equal to 1.0"
    yield not (top_p > 0 and top_k > 0), "cannot set both top-k and top-p samplings."
    yield 0 <= top_p <= 1.0, "top_p must be less than or equal to 1.0"
    if "top_p_decay" in body:
        decay = body["top_p_decay"]
        yield type(decay) is float, "top_p_decay must be a positive float less than or equal to 1.0"
        yield top_p != 0.0, "top_p_decay cannot be set without top_p"
        yield 0 <= decay <= 1.0, "top_p_decay must be less than or equal to 1.0"
    if "top_p_bound" in body:
        bound = body["top_p_bound"]
        yield type(bound) is float, "top_p_bound must be a positive float less than or equal to top_p"
        yield top_p != 0.0, "top_p_bound cannot be set without top_p"
        yield 0.0 < bound <= top_p, "top_p_bound must be greater than 0 and less than top_p"


def _rules_of_ends(body: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    yield _is_bool(body, "add_BOS")
    yield all(body["prompts"]) or body.get("add_BOS", False), "Empty prompts require add_BOS=true"
    yield _is_bool(body, "stop_on_double_eol")
    yield _is_bool(body, "stop_on_eol")
    yield _is_bool(body, "prevent_newline_after_colon")
    if "random_seed" in body:
        yield isinstance(body["random_seed"], int), "random_seed must be integer"
        yield body["random_seed"] >= 0, "random_seed must be a positive integer"
    yield _is_bool(body, "no_log")
    if "beam_width" in body:
        yield isinstance(body["beam_width"], int), "beam_width must be integer"
        yield body["beam_width"] >= 1, "beam_width must be an integer > 1"
        yield len(body["prompts"]) == 1, "When doing beam_search, batch size must be 1"
    yield isinstance(body.get("stop_token", 0), int), "stop_token must be an integer"
    yield isinstance(body.get("length_penalty", 1.0), float), "length_penalty must be a float"


def _is_bool(body: Mapping[str, Any], name: str) -> tuple[bool, str]:
    return isinstance(body.get(name, False), bool), f"{name} must be a boolean value"
