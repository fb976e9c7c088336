"""``--engine vllm``: the same service before another engine. What needs vLLM itself is skipped without it."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import LoadedModel, as_lazy
from groundup.cli.app import build_app
from groundup.core.errors import ConfigError, GroundupError, MachineError
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Generation, Request
from groundup.serve.vllm_engine import VllmEngine, settings_of, vllm_engine
from tests.served import Served
from tests.tiny import END, tiny_model

GREEDY = Sampling(temperature=0)
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    """Heads of a size that vLLM's kernels know."""
    return tiny_model("gpt2", hidden_size=128, num_heads=2, ffn_size=256)


@pytest.fixture(scope="module")
def vllm(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    folder = tmp_path_factory.mktemp("vllm") / "model"
    write_huggingface(loaded, folder)
    settings = {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 26}
    stored = as_lazy(loaded)
    with vllm_engine(folder, stored, dtype="float32", max_batch_size=4, settings=settings) as (_, engine):
        yield engine


def completed(engine: VllmEngine, requests: list[Request]) -> list[Generation]:
    """What ``Engine.complete`` would return."""
    deltas = {engine.add(request): [] for request in requests}
    running = set(deltas)
    while running:
        for delta in engine.step():
            deltas[delta.sequence].append(delta)
            if delta.finished:
                running.remove(delta.sequence)
    return [Generation.joined(iter(of)) for of in deltas.values()]


def command(*words: object) -> None:
    build_app()(["serve", *map(str, words)], result_action="return_value")


def test_without_vllm_it_is_told_how_to_install_it(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_huggingface(loaded, tmp_path / "model")
    monkeypatch.setitem(importlib.sys.modules, "vllm", None)
    for name in ("VLLM_NO_USAGE_STATS", "VLLM_LOGGING_LEVEL", "VLLM_LOGGING_STREAM"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(MachineError, match="pip install vllm"):
        command(tmp_path / "model", "--port", 0, "--engine", "vllm")


def test_what_has_no_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vllm.seed=1 is no setting"):
        command(tmp_path, "--port", 0, "vllm.seed=1")
    with pytest.raises(ConfigError, match="--device"):
        command(tmp_path, "--port", 0, "--engine", "vllm", "--device", "cpu")
    with pytest.raises(GroundupError, match=r"layout\.dp"):
        command(tmp_path, "--port", 0, "--engine", "vllm", "layout.dp=2")


def test_settings_say_the_same() -> None:
    sampling = Sampling(temperature=0.5, top_k=3, top_p=0, min_p=0.1, repetition_penalty=1.2)
    request = Request(prompt=[1], sampling=sampling, max_new_tokens=0, seed=-1, stop_ids={7, 5})
    assert settings_of(request) == {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 1.0,  # all are kept
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "seed": (1 << 63) - 1,
        "max_tokens": 1,
        "stop_token_ids": [5, 7],
        "ignore_eos": True,
        "logprobs": None,
        "prompt_logprobs": None,
        "detokenize": False,
    }


@needs_vllm
def test_greedy_texts_are_our_engine_s(loaded: LoadedModel, vllm: VllmEngine) -> None:
    requests = [
        Request(
            prompt=[(3 * length + at) % 256 for at in range(length)],
            sampling=GREEDY,
            max_new_tokens=20,
            num_logprobs=3,
            num_prompt_logprobs=2,
        )
        for length in (1, 5, 17, 30, 2, 40)
    ]
    mine, theirs = list(Engine(loaded).complete(requests)), completed(vllm, requests)
    for own, other in zip(mine, theirs, strict=True):
        assert (other.ids, other.text, other.finished) == (own.ids, own.text, own.finished)
        assert len(other.prompt_logprobs) == len(own.prompt_logprobs)
        for pair in zip(
            (*other.prompt_logprobs, *other.logprobs), (*own.prompt_logprobs, *own.logprobs), strict=True
        ):
            assert pair[0].chosen == pytest.approx(pair[1].chosen, abs=1e-3)
            assert [number for number, _ in pair[0].top] == [number for number, _ in pair[1].top]


@needs_vllm
def test_texts_end_as_ours_do(loaded: LoadedModel, vllm: VllmEngine) -> None:
    engine = Engine(loaded)
    whole = engine.generate([[1, 2, 3]], sampling=GREEDY, max_new_tokens=20)[0]
    stop = whole.text[4:7]
    assert stop.strip("\ufffd")
    cases = [
        {"stop": [stop]},
        {"stop_ids": {whole.ids[6]}},
        {"stop": [END, "never"]},
        {"max_new_tokens": 0, "num_prompt_logprobs": 0},
        {"max_new_tokens": 10**6},
    ]
    requests = [
        Request(**{"prompt": [1, 2, 3], "sampling": GREEDY, "max_new_tokens": 20, **case}) for case in cases
    ]
    expected = list(engine.complete(requests))
    assert {one.finished for one in expected} == {"stop", "length", "context"}
    *found, longest = completed(vllm, requests)
    assert (longest.ids, longest.finished) == (expected.pop().ids[:-1], "context")  # its last has no place
    for own, other in zip(expected, found, strict=True):
        assert (other.ids, other.text, other.finished) == (own.ids, own.text, own.finished)


@needs_vllm
def test_a_seed_repeats_and_an_aborted_text_is_silent(vllm: VllmEngine) -> None:
    def drawn(seed: int) -> Request:
        return Request(prompt=[9, 8], sampling=Sampling(), max_new_tokens=20, seed=seed)

    gone = vllm.add(drawn(3))
    vllm.abort(gone)
    vllm.abort(gone)
    first, other, again = (one.ids for one in completed(vllm, [drawn(1), drawn(2), drawn(1)]))
    assert first == again != other


@needs_vllm
def test_the_service_speaks_to_it(loaded: LoadedModel, vllm: VllmEngine) -> None:
    with Served(loaded) as own, Served(loaded, other=vllm) as served:
        for method, path, body in (
            ("PUT", "/api", {"prompts": ["the cat", "a"], "tokens_to_generate": 5, "top_k": 1}),
            ("PUT", "/api", {"prompts": ["x" * 300], "tokens_to_generate": 1}),
        ):
            assert served.ask(method, path, body) == own.ask(method, path, body)
        body = {"prompt": "the cat", "max_tokens": 5, "temperature": 0}
        answers = [one.ask("POST", "/v1/completions", body)[1] for one in (served, own)]
        assert answers[0]["choices"] == answers[1]["choices"]
        status, answer = served.ask("POST", "/v1/completions", {**body, "overflow": "slide"})
        assert (status, "sliding" in answer["error"]["message"]) == (422, True)
        status, answer = served.ask(
            "PUT", "/api", {"prompts": ["a"], "tokens_to_generate": 2, "beam_width": 2}
        )
        assert (status, "beam search" in answer["message"]) == (422, True)
        connection = served.connect()
        connection.request(
            "POST",
            "/v1/completions",
            '{"prompt": "a", "max_tokens": 30, "stream": true}',
            {"Content-Type": "application/json"},
        )
        connection.getresponse().readline()
        connection.close()
        served.wait_until(lambda: served.service.engine.num_texts == 0)
        assert "groundup_new_tokens_total" in served.ask("GET", "/metrics")[1]


@needs_vllm
def test_an_argument_that_vllm_has_not(loaded: LoadedModel, tmp_path: Path) -> None:
    write_huggingface(loaded, tmp_path / "model")
    settings = {"gpu_memory_utilisation": 0.5}
    with (
        pytest.raises(ConfigError, match="gpu_memory_utilization"),
        vllm_engine(
            tmp_path / "model", as_lazy(loaded), dtype="float32", max_batch_size=1, settings=settings
        ),
    ):
        pass
