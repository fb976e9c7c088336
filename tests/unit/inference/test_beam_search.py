"""Beams on the paged cache: beside other texts, with too few blocks, and against a search without a cache."""

import dataclasses
from typing import Any

import pytest
import torch

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.errors import CheckpointError, ConfigError
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request
from groundup.models import lm_head
from tests.instances import MODELS
from tests.tiny import tiny_model
from tests.unit.inference.test_continuous_batching import alone, assert_same, cache_bytes, requests

GREEDY = Sampling(temperature=0)


def softened(loaded: LoadedModel) -> LoadedModel:
    """The same with smaller logits, so that beams often change places."""
    with torch.no_grad():
        loaded.model.head.weight.mul_(0.3)  # type: ignore[union-attr, operator]
    return loaded


def searches(count: int, **changes: Any) -> list[Request]:
    settings: dict[str, Any] = {
        "sampling": GREEDY,
        "max_new_tokens": 26,
        "stop_ids": tuple(range(0, 300, 40)),
        **changes,
    }
    return [
        Request(prompt=[7, 9 + number, *range(17)], num_beams=2 + number % 3, **settings)
        for number in range(count)
    ]


def beams_without_cache(loaded: LoadedModel, prompt: list[int], size: int, count: int) -> list[list[int]]:
    """The texts that a search of so many tokens without stop ids is left with, the best first."""
    model: Any = loaded.model
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    with torch.inference_mode():
        for _ in range(count):
            following = []
            for score, ids in beams:
                logits = lm_head(model, model(torch.tensor([prompt + ids]))[0, -1], 300)
                values, top = logits.log_softmax(-1).topk(size)
                following += [
                    (score + value, [*ids, number])
                    for value, number in zip(values.tolist(), top.tolist(), strict=True)
                ]
            beams = sorted(following, key=lambda one: -one[0])[:size]
    return [ids for _, ids in beams]


@pytest.mark.parametrize("name", MODELS)
def test_they_are_those_of_a_search_without_cache(name: str) -> None:
    loaded = softened(tiny_model(name))
    [request] = searches(1, stop_ids=(), max_new_tokens=20)
    request = dataclasses.replace(request, num_beams=4)
    [found] = Engine(loaded).complete([request])
    expected = beams_without_cache(loaded, list(request.prompt), 4, 20)
    assert [list(beam.ids) for beam in found.beams] == expected
    data = b"".join(map(loaded.tokenizer.token_bytes, expected[0]))
    assert found.text == data.decode(errors="replace")
    [greedy] = Engine(loaded).complete([dataclasses.replace(request, num_beams=1)])
    assert list(greedy.ids) not in expected[:1], "the beams changed nothing"


@pytest.mark.parametrize(("batch_size", "num_blocks"), [(6, 99), (64, 99), (8, 7), (64, 4)])
def test_beams_and_others_do_not_disturb_each_other(batch_size: int, num_blocks: int) -> None:
    loaded = softened(tiny_model("llama-grouped-tied"))
    plain = [request for request in requests(6) if len(request.prompt) + request.max_new_tokens < 64]
    wanted = [one for pair in zip(plain, searches(len(plain)), strict=True) for one in pair]
    expected = alone(loaded, wanted)
    size = cache_bytes(loaded, num_blocks)
    engine = Engine(loaded, max_batch_size=batch_size, max_step_tokens=9, cache_bytes=size)
    found = list(engine.complete(wanted))
    assert_same(found, expected)
    for one, other in zip(found, expected, strict=True):
        assert [beam.ids for beam in one.beams] == [beam.ids for beam in other.beams]
        assert [beam.score for beam in one.beams] == pytest.approx([beam.score for beam in other.beams])
    assert engine.blocks.num_free == engine.blocks.num_blocks
    assert (engine.scheduler.num_preemptions > 0) == (num_blocks < 99)


def test_beams_share_what_they_have_in_common() -> None:
    loaded = softened(tiny_model("gpt2"))
    engine = Engine(loaded)
    request = dataclasses.replace(searches(1, stop_ids=(), max_new_tokens=8)[0], prompt=[5] * 40, num_beams=8)
    number = engine.add(request)
    most = 0
    while not [delta for delta in engine.step() if delta.sequence == number]:
        most = max(most, engine.blocks.num_blocks - engine.blocks.num_free)
    assert most == 2 + 8, "two full blocks of the prompt, and one for each beam"
    assert engine.blocks.num_free == engine.blocks.num_blocks


def test_a_search_can_be_aborted_and_leaves_nothing() -> None:
    engine = Engine(softened(tiny_model("gpt2")))
    for steps in range(4):
        [request] = searches(1, stop_ids=())
        number = engine.add(request)
        for _ in range(steps):
            assert engine.step() == []
        engine.abort(number)
        assert engine.blocks.num_free == engine.blocks.num_blocks
        assert engine.step() == []


def test_the_context_ends_a_search() -> None:
    loaded = softened(tiny_model("gpt2"))
    length = loaded.config.max_sequence_length
    [request] = searches(1, stop_ids=(), max_new_tokens=100)
    [found] = Engine(loaded).complete([dataclasses.replace(request, prompt=[1] * (length - 3))])
    assert [(len(beam.ids), beam.finished) for beam in found.beams] == [(4, "context")] * 2
    assert found.finished == "context"


def test_a_search_whose_numbers_overflow_fails_alone() -> None:
    loaded = tiny_model("gpt2-erf-untied-biasless")
    with torch.no_grad():
        loaded.model.embed.tokens.weight[7] = torch.nan  # type: ignore[union-attr, index]
    [bad] = searches(1)
    [good] = [dataclasses.replace(bad, prompt=[1, 2, 3], stop_ids=(7,))]
    engine = Engine(loaded, max_step_tokens=8)
    [expected] = engine.complete([good])
    stream = engine.complete([good, bad, good])
    assert next(stream).beams == expected.beams
    with pytest.raises(CheckpointError, match="not finite"):
        next(stream)
    assert engine.blocks.num_free == engine.blocks.num_blocks
    assert next(iter(engine.complete([good]))).beams == expected.beams


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_beams": 0}, "num_beams is 0, beam search takes 2 to 6"),
        ({"num_beams": 7}, "num_beams is 7, beam search takes 2 to 6"),
        ({"num_beams": 1, "length_penalty": 2.0}, "num_beams is 1"),
        ({"length_penalty": float("nan")}, "length_penalty is nan"),
        ({"sampling": Sampling()}, "takes no temperature"),
        ({"stop": ("x",), "num_logprobs": 0}, "no stop strings and no log-probabilities of tokens"),
        ({"overflow": "slide"}, "overflow slide"),
    ],
)
def test_what_beams_do_not_know_is_refused(changes: dict[str, Any], message: str) -> None:
    [request] = searches(1)
    engine = Engine(tiny_model("gpt2"), max_batch_size=6)
    with pytest.raises(ConfigError, match=message):
        engine.add(dataclasses.replace(request, **changes))
