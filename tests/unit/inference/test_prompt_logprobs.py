"""Log-probabilities of the prompt's own tokens, whatever chunks it is read in and whoever shares it."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from groundup.checkpoint.huggingface.weights import read_huggingface
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.eval import scoring
from groundup.inference.engine import BLOCK_SIZE, Engine
from groundup.inference.sampler import Sampling, TokenLogprob
from groundup.inference.sequence import Request
from groundup.models import lm_head
from tests.instances import MODELS
from tests.tiny import tiny_model
from tests.unit.inference.test_continuous_batching import cache_bytes

GREEDY = Sampling(temperature=0)


def asking(prompt: list[int], **changes: Any) -> Request:
    settings: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 4, "num_prompt_logprobs": 3, **changes}
    return Request(prompt=prompt, **settings)


def prompts_of(count: int) -> list[list[int]]:
    """Prompts that begin alike, for two blocks and a half."""
    rng = np.random.default_rng(0)
    shared = rng.integers(300, size=2 * BLOCK_SIZE + BLOCK_SIZE // 2).tolist()
    return [shared + rng.integers(300, size=int(rng.integers(1, 20))).tolist() for _ in range(count)]


def scores_of(loaded: Any, ids: list[int]) -> list[float]:
    """What evaluation says of all tokens but the first."""
    request = scoring.Request(np.array(ids[:1]), np.array(ids[1:]))
    return scoring.loglikelihood(loaded.model, loaded.config, [request])[0].logprobs.tolist()


def chosen(logprobs: tuple[TokenLogprob, ...]) -> list[float]:
    return [one.chosen for one in logprobs]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("step_tokens", "num_blocks"), [(7, 99), (256, 99), (20, 6)])
def test_they_are_those_of_evaluation(name: str, step_tokens: int, num_blocks: int) -> None:
    loaded = tiny_model(name)
    requests = [asking(prompt, num_logprobs=0) for prompt in prompts_of(6)]
    engine = Engine(
        loaded, max_batch_size=3, max_step_tokens=step_tokens, cache_bytes=cache_bytes(loaded, num_blocks)
    )
    for request, found in zip(requests, engine.complete(requests), strict=True):
        expected = scores_of(loaded, [*request.prompt, *found.ids])
        both = chosen(found.prompt_logprobs + found.logprobs)
        assert both == pytest.approx(expected, abs=1e-5)
    assert engine.blocks.num_free == engine.blocks.num_blocks
    assert (engine.scheduler.num_preemptions > 0) == (num_blocks == 6)


def test_a_known_prefix_still_gives_them() -> None:
    loaded = tiny_model("llama")
    [prompt, other, *_] = prompts_of(2)
    engine = Engine(loaded)
    [before] = engine.complete([asking(prompt)])
    [_, again, third] = engine.complete(
        [asking(prompt, num_prompt_logprobs=None), asking(prompt), asking(other)]
    )
    assert again == before
    assert chosen(third.prompt_logprobs) == pytest.approx(scores_of(loaded, other), abs=1e-5)


def test_the_alternatives_are_the_most_probable_tokens() -> None:
    loaded = tiny_model("gpt2")
    [prompt] = prompts_of(1)
    [found] = Engine(loaded, max_step_tokens=9).complete([asking(prompt)])
    model: Any = loaded.model
    with torch.inference_mode():
        logprobs = lm_head(model, model(torch.tensor([prompt]))[0], 300).log_softmax(-1)
    assert len(found.prompt_logprobs) == len(prompt) - 1
    for one, expected in zip(found.prompt_logprobs, logprobs[:-1], strict=True):
        values, ids = expected.topk(3)
        assert [number for number, _ in one.top] == ids.tolist()
        assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_they_come_once_with_the_first_tokens() -> None:
    loaded = tiny_model("gpt2")
    [prompt] = prompts_of(1)
    request = asking(prompt, sampling=Sampling(temperature=2.0), num_logprobs=1)
    deltas = list(Engine(loaded, max_step_tokens=8).stream(request))
    assert [len(delta.prompt_logprobs) for delta in deltas] == [len(prompt) - 1, 0, 0, 0]
    [plain] = Engine(loaded).complete([dataclasses.replace(request, num_prompt_logprobs=None)])
    assert tuple(number for delta in deltas for number in delta.ids) == plain.ids


def test_a_prompt_can_be_all_that_is_asked_about() -> None:
    loaded = tiny_model("gpt2")
    engine = Engine(loaded)
    full = [(7 * number) % 300 for number in range(engine.context)]
    for prompt in ([5], [5, 9, 200], full):
        [found] = engine.complete([asking(prompt, max_new_tokens=0)])
        assert (found.ids, found.text, found.finished) == ((), "", "length")
        if len(prompt) > 1:
            assert chosen(found.prompt_logprobs) == pytest.approx(scores_of(loaded, prompt), abs=1e-5)
    assert found.prompt_logprobs and engine.blocks.num_free == engine.blocks.num_blocks
    with pytest.raises(ConfigError, match="max_new_tokens is 0"):
        engine.add(asking([5], max_new_tokens=0, num_prompt_logprobs=None))
    with pytest.raises(DataError, match="65 tokens"):
        engine.add(asking([*full, 1], overflow="slide"))


def test_a_prompt_whose_numbers_overflow_fails_alone() -> None:
    loaded = tiny_model("gpt2-erf-untied-biasless")
    with torch.no_grad():
        loaded.model.embed.tokens.weight[7] = torch.nan  # type: ignore[union-attr, index]
    engine = Engine(loaded, max_step_tokens=8, max_batch_size=4)
    [prompt] = prompts_of(1)
    good = [number if number != 7 else 8 for number in prompt]
    bad = [*good[:40], 7, *good[:5]]  # shares blocks with the good one
    stream = engine.stream(asking(good, max_new_tokens=12, stop_ids=(7,)))
    first = next(stream)
    with pytest.raises(CheckpointError, match="not finite"):
        list(engine.complete([asking(bad, num_prompt_logprobs=None)]))
    with pytest.raises(CheckpointError, match="not finite"):
        list(engine.complete([asking(bad)]))
    ids = first.ids + tuple(number for delta in stream for number in delta.ids)
    [expected] = Engine(loaded).complete([asking(good, max_new_tokens=12, stop_ids=(7,))])
    assert ids == expected.ids
    assert engine.blocks.num_free == engine.blocks.num_blocks


def test_a_real_story_is_as_probable_as_evaluation_says(shared_data: Path) -> None:
    loaded = read_huggingface(shared_data / "models" / "stories260K")
    prompt = [
        1,
        *loaded.tokenizer.encode("Once upon a time, there was a little girl named Lily. She had a red ball."),
    ]
    [found] = Engine(loaded, max_step_tokens=6, max_batch_size=3).complete([asking(prompt, max_new_tokens=0)])
    assert chosen(found.prompt_logprobs) == pytest.approx(scores_of(loaded, prompt), abs=1e-5)
    assert sum(chosen(found.prompt_logprobs)) / (len(prompt) - 1) > -2
