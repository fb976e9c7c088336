"""Texts are what they would be alone, whoever joins, leaves, is preempted or shares a prefix."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from groundup.checkpoint.huggingface.weights import read_huggingface
from groundup.core.errors import CheckpointError, DataError
from groundup.inference.engine import BLOCK_SIZE, Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Generation, Request
from groundup.models import lm_head
from tests.instances import MODELS
from tests.tiny import tiny_model

GREEDY = Sampling(temperature=0)


def requests(count: int, *, vocab_size: int = 300, longest: int = 40, shared: int = 0) -> list[Request]:
    """Requests of different lengths, settings and seeds; the prompts begin with the same tokens."""
    rng = np.random.default_rng(0)
    samplings = (
        GREEDY,
        Sampling(temperature=1.5),
        Sampling(top_k=20, repetition_penalty=1.3),
        Sampling(min_p=0.02),
    )
    prefix = rng.integers(vocab_size, size=shared).tolist()
    return [
        Request(
            prompt=prefix + rng.integers(vocab_size, size=rng.integers(1, longest - shared)).tolist(),
            sampling=samplings[index % len(samplings)],
            max_new_tokens=int(rng.integers(1, 24)),
            seed=index,
            num_logprobs=(None, 0, 3)[index % 3],
        )
        for index in range(count)
    ]


def cache_bytes(loaded: Any, num_blocks: int) -> int:
    config = loaded.config
    return num_blocks * 2 * BLOCK_SIZE * config.num_layers * config.num_kv_heads * config.head_dim * 4


def alone(loaded: Any, wanted: Sequence[Request]) -> list[Generation]:
    return [next(iter(Engine(loaded, max_step_tokens=1000).complete([request]))) for request in wanted]


def assert_same(found: Sequence[Generation], expected: Sequence[Generation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.ids, one.text, one.finished) == (other.ids, other.text, other.finished)
        assert len(one.logprobs) == len(other.logprobs)
        for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert mine.chosen == pytest.approx(theirs.chosen, abs=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("batch_size", "step_tokens", "num_blocks"), [(3, 7, 99), (16, 33, 99), (16, 64, 7)])
def test_texts_do_not_depend_on_their_company(
    name: str, batch_size: int, step_tokens: int, num_blocks: int
) -> None:
    loaded = tiny_model(name)
    wanted = requests(14)
    engine = Engine(
        loaded,
        max_batch_size=batch_size,
        max_step_tokens=step_tokens,
        cache_bytes=cache_bytes(loaded, num_blocks),
    )
    assert_same(list(engine.complete(wanted)), alone(loaded, wanted))
    assert engine.blocks.num_free == engine.blocks.num_blocks
    assert (engine.scheduler.num_preemptions > 0) == (num_blocks == 7)


def test_texts_join_a_running_batch_at_once() -> None:
    loaded = tiny_model("llama")
    wanted = requests(6)
    engine = Engine(loaded)
    found: dict[int, list[int]] = {}
    for step in itertools.count():
        if step < len(wanted):
            joined = engine.add(wanted[step])
        deltas = engine.step()
        if step < len(wanted):
            assert joined in [delta.sequence for delta in deltas], "its first token comes in the same step"
        elif not deltas:
            break
        for delta in deltas:
            found.setdefault(delta.sequence, []).extend(delta.ids)
    assert [tuple(found[number]) for number in sorted(found)] == [one.ids for one in alone(loaded, wanted)]


def test_a_long_prompt_stalls_nobody() -> None:
    engine = Engine(tiny_model("gpt2"), max_batch_size=2, max_step_tokens=9)
    short = engine.add(Request(prompt=[1], sampling=GREEDY, max_new_tokens=30))
    engine.step()
    long = engine.add(Request(prompt=[2] * 50, sampling=GREEDY, max_new_tokens=1))
    came = []
    while long not in came:
        came = [delta.sequence for delta in engine.step()]
        assert short in came


def test_equal_prefixes_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model("llama-grouped-tied")
    wanted = requests(8, shared=35, longest=50)
    expected = alone(loaded, wanted)
    engine = Engine(loaded)
    num_tokens = []
    run = engine.runner.run
    monkeypatch.setattr(
        engine.runner, "run", lambda work: num_tokens.append(sum(one.num_tokens for one in work)) or run(work)
    )
    assert_same(list(engine.complete(wanted)), expected)
    every = sum(len(one.prompt) for one in wanted) + sum(len(one.ids) - 1 for one in expected)
    assert sum(num_tokens) == every - 7 * 32, "two blocks of 16 tokens, for all but the first"
    assert_same(list(engine.complete(wanted)), expected)


def test_an_aborted_text_frees_its_blocks_and_harms_nobody() -> None:
    loaded = tiny_model("llama")
    wanted = requests(5)
    engine = Engine(loaded)
    streams = [engine.stream(dataclasses.replace(request, max_new_tokens=20)) for request in wanted]
    for stream in streams:
        next(stream)
    for stream in streams[1:]:
        stream.close()
    assert 0 < engine.blocks.num_blocks - engine.blocks.num_free <= 4
    ids = [number for delta in streams[0] for number in delta.ids]
    [expected] = alone(loaded, [dataclasses.replace(wanted[0], max_new_tokens=20)])
    assert ids == list(expected.ids[1:])
    assert engine.blocks.num_free == engine.blocks.num_blocks
    waiting = engine.add(wanted[0])
    engine.abort(waiting)
    engine.abort(waiting)
    assert engine.step() == []


def test_log_probabilities_are_those_of_the_full_forward() -> None:
    # Both are up to 2e-5 away from what fp64 gives.
    for name in MODELS:
        loaded = tiny_model(name)
        wanted = [dataclasses.replace(one, num_logprobs=5) for one in requests(6)]
        for request, found in zip(wanted, Engine(loaded, max_step_tokens=8).complete(wanted), strict=True):
            ids = torch.tensor([[*request.prompt, *found.ids]])
            with torch.inference_mode():
                logprobs = lm_head(loaded.model, loaded.model(ids)[0], 300).log_softmax(-1)
            for at, (number, logprob) in enumerate(zip(found.ids, found.logprobs, strict=True)):
                expected = logprobs[len(request.prompt) + at - 1]
                assert logprob.chosen == pytest.approx(float(expected[number]), abs=3e-5)
                values = expected.topk(5).values.tolist()
                assert [value for _, value in logprob.top] == pytest.approx(values, abs=3e-5)
                best = [float(expected[other]) for other, _ in logprob.top]
                assert best == pytest.approx(values, abs=3e-5)


def test_a_stop_string_ends_the_text_and_is_never_shown() -> None:
    loaded = tiny_model("gpt2")
    engine = Engine(loaded)
    request = Request(prompt=[65], sampling=Sampling(temperature=2.0), max_new_tokens=60, seed=2)
    [whole] = engine.complete([request])
    middle = next(
        at
        for at in range(8, len(whole.text) - 4)
        if whole.text.find(whole.text[at : at + 3]) == at and whole.text[at : at + 3].isascii()
    )
    stop = whole.text[middle : middle + 3]
    shown = list(engine.stream(dataclasses.replace(request, stop=("never there", stop))))
    assert "".join(delta.text for delta in shown) == whole.text[:middle]
    assert shown[-1].finished == "stop"
    ids = [number for delta in shown for number in delta.ids]
    assert len(ids) < len(whole.ids) and ids == list(whole.ids[: len(ids)])
    for stopped in ("!" + whole.text[-1], whole.text[-1] + "!"):  # begins at the end, and does not come
        [found] = engine.complete([dataclasses.replace(request, stop=(stopped,))])
        assert found == whole


def test_the_context_overflows_as_was_chosen() -> None:
    loaded = tiny_model("gpt2")
    length = loaded.config.max_sequence_length
    prompt = [(7 * number) % 300 for number in range(length - 3)]
    engine = Engine(loaded)
    request = Request(prompt=prompt, sampling=GREEDY, max_new_tokens=2 * length, overflow="slide")
    [found] = engine.complete([request])
    assert (len(found.ids), found.finished) == (2 * length, "length")
    seen = list(prompt)
    model: Any = loaded.model
    with torch.inference_mode():
        for number in found.ids:  # by hand: the last half again, whenever the context is exceeded
            if len(seen) > length:
                seen = seen[len(seen) - length // 2 :]
            assert int(lm_head(model, model(torch.tensor([seen]))[0, -1], 300).argmax()) == number
            seen.append(number)
    [cut] = engine.complete([dataclasses.replace(request, prompt=[5] * 100 + prompt[-length // 2 :])])
    [expected] = engine.complete([dataclasses.replace(request, prompt=prompt[-length // 2 :])])
    assert cut == expected
    with pytest.raises(DataError, match="61 tokens of the prompt and 128 new ones exceed the context of 64"):
        engine.add(dataclasses.replace(request, overflow="refuse"))
    small = Engine(loaded, cache_bytes=cache_bytes(loaded, 2))
    with pytest.raises(DataError, match=r"has 61 tokens, .* holds 32"):
        small.add(dataclasses.replace(request, overflow="stop"))


def test_a_text_whose_numbers_overflow_harms_no_other() -> None:
    loaded = tiny_model("gpt2")
    with torch.no_grad():
        loaded.model.embed.tokens.weight[7] = torch.nan  # type: ignore[union-attr, index]
    model: Any = loaded.model
    if model.head.weight is model.embed.tokens.weight:
        model.head.weight = torch.nn.Parameter(model.head.weight.nan_to_num())
    engine = Engine(loaded, cache_bytes=cache_bytes(loaded, 4))
    good = Request(prompt=[1, 2, 3], sampling=GREEDY, max_new_tokens=20, stop_ids=(7,))
    [expected] = engine.complete([good])
    stream = engine.stream(good)
    first = next(stream)
    with pytest.raises(CheckpointError, match="not finite"):
        list(engine.complete([dataclasses.replace(good, prompt=[7] * 20)]))
    assert first.ids + tuple(number for delta in stream for number in delta.ids) == expected.ids
    assert next(iter(engine.complete([good, dataclasses.replace(good, prompt=[2] * 20)]))) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt2", "llama-grouped-tied"])
def test_half_precision_stays_near(name: str, dtype: torch.dtype) -> None:
    loaded = tiny_model(name)
    wanted = [Request(prompt=[5, 9, 200] * 7, sampling=GREEDY, max_new_tokens=1, num_logprobs=300)] * 2
    wanted += [Request(prompt=[5, 9, 200] * 7 + [8], sampling=GREEDY, max_new_tokens=8, num_logprobs=300)]
    for exact, rounded in zip(
        Engine(loaded).complete(wanted),
        Engine(loaded, dtype=dtype, max_step_tokens=4).complete(wanted),
        strict=True,
    ):
        expected, found = (dict(one.logprobs[0].top) for one in (exact, rounded))
        error = max(abs(expected[number] - found[number]) for number in expected)
        spread = max(expected.values()) - min(expected.values())
        assert 0 < error < 0.03 * spread


def test_a_real_model_is_the_same_in_any_company(shared_data: Path) -> None:
    loaded = read_huggingface(shared_data / "models" / "stories260K")
    text = "Once upon a time, there was a little girl named Lily. She"
    prompt = [1, *loaded.tokenizer.encode(text)]
    wanted = [
        Request(prompt=prompt[: 1 + index], sampling=sampling, max_new_tokens=60 + index, seed=index)
        for index, sampling in enumerate([GREEDY, Sampling(temperature=0.9)] * 6)
    ]
    engine = Engine(loaded, max_step_tokens=16, max_batch_size=5, cache_bytes=cache_bytes(loaded, 16))
    assert_same(list(engine.complete(wanted)), alone(loaded, wanted))
    assert engine.scheduler.num_preemptions > 0
