"""Which requests can be generated, and what of them an engine is asked; others are refused at once."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from groundup.core.errors import ConfigError, DataError
from groundup.core.vocabulary import require_token_ids
from groundup.inference.sequence import Request


def with_stop_tokens(request: Request, special_tokens: Mapping[str, int]) -> Request:
    """Turns stop strings that name special tokens, which stand for no text, into their ids."""
    if not (named := [stop for stop in request.stop if stop in special_tokens]):
        return request
    return dataclasses.replace(
        request,
        stop_ids={*request.stop_ids, *(special_tokens[stop] for stop in named)},
        stop=[stop for stop in request.stop if stop not in special_tokens],
    )


def require_possible(
    request: Request, *, context: int, max_batch_size: int, model_ids: int, text_ids: int, empty: int
) -> None:
    """Refuses what cannot be generated.

    Args:
        request: Of a user.
        context: Tokens that the model can see at once.
        max_batch_size: Texts that are worked on together.
        model_ids: Ids that the model reads.
        text_ids: Ids that are ever produced, and whose log-probabilities are known.
        empty: The id that begins a text without a prompt.

    Raises:
        DataError: The prompt is empty, too long, or has an id outside the vocabulary.
        ConfigError: No token is asked for, or settings have no effect beside each other.
    """
    prompt, num_new = request.prompt, request.max_new_tokens
    asks_about_prompt = request.num_prompt_logprobs is not None
    if not prompt:
        raise DataError("the prompt is empty", fix=f"Begin with a token: the end-of-document id is {empty}.")
    if num_new < 0 or (num_new == 0 and not asks_about_prompt):
        raise ConfigError(f"max_new_tokens is {num_new}, not 1 or more")
    if len(prompt) > context and (asks_about_prompt or request.overflow != "slide"):
        raise DataError(
            f"the prompt has {len(prompt):,} tokens, the model's context holds {context:,}",
            fix=f"Cut the prompt to its last {context:,} tokens or fewer.",
        )
    if request.overflow == "refuse" and len(prompt) + num_new > context:
        raise DataError(
            f"{len(prompt):,} tokens of the prompt and {num_new:,} new ones exceed the"
            f" context of {context:,}",
            fix="Shorten the prompt, or ask for fewer tokens.",
        )
    require_token_ids(
        np.array(prompt),
        text_ids if asks_about_prompt else model_ids,
        place=lambda at: f"position {at} of the prompt",
    )
    if request.num_beams != 1 or request.length_penalty != 1:
        _require_beams_possible(request, max_batch_size)


def _require_beams_possible(request: Request, max_batch_size: int) -> None:
    """Refuses what beam search does not know, or cannot hold."""
    if not 1 < request.num_beams <= max_batch_size:
        raise ConfigError(
            f"num_beams is {request.num_beams}, beam search takes 2 to {max_batch_size}",
            fix="Leave out num_beams and length_penalty for a search without beams.",
        )
    if not math.isfinite(request.length_penalty):
        raise ConfigError(f"length_penalty is {request.length_penalty}, not a finite number")
    given = {
        "temperature": request.sampling.temperature != 0,
        "repetition penalty": request.sampling.repetition_penalty != 1,
        "stop strings": bool(request.stop),
        "log-probabilities of tokens": request.num_logprobs is not None,
        "log-probabilities of the prompt": request.num_prompt_logprobs is not None,
        "overflow slide": request.overflow == "slide",
    }
    if names := [name for name, is_given in given.items() if is_given]:
        raise ConfigError(
            f"beam search takes no {' and no '.join(names)}",
            fix="Leave them out: it draws nothing, and ends texts at stop ids and lengths.",
        )
