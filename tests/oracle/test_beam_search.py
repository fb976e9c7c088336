"""Beam search against ``transformers``: the same tokens and scores."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint.huggingface.weights import read_huggingface, write_huggingface
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request
from tests.tiny import tiny_model
from tests.unit.inference.test_beam_search import softened

transformers = pytest.importorskip("transformers")

GREEDY = Sampling(temperature=0)


def their_beams(model: Any, request: Request) -> list[tuple[tuple[int, ...], float]]:
    """All beams with their scores; without the stop id and what stands behind it."""
    tokens_BT = torch.tensor([request.prompt])
    stops = sorted(request.stop_ids)
    found = model.generate(
        tokens_BT,
        attention_mask=torch.ones_like(tokens_BT),
        do_sample=False,
        num_beams=request.num_beams,
        num_return_sequences=request.num_beams,
        length_penalty=request.length_penalty,
        max_new_tokens=request.max_new_tokens,
        eos_token_id=stops or None,
        pad_token_id=stops[0] if stops else 0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    rows = found.sequences[:, len(request.prompt) :].tolist()
    texts = [tuple(itertools.takewhile(lambda number: number not in request.stop_ids, row)) for row in rows]
    return list(zip(texts, found.sequences_scores.tolist(), strict=True))


def assert_equal(engine: Engine, model: Any, requests: Sequence[Request]) -> list[int]:
    """Compares all; returns the lengths of what was found."""
    lengths = []
    for request, found in zip(requests, engine.complete(requests), strict=True):
        expected = their_beams(model, request)
        assert [beam.ids for beam in found.beams] == [ids for ids, _ in expected]
        scores = [score for _, score in expected]
        assert [beam.score for beam in found.beams] == pytest.approx(scores, rel=1e-4)
        assert (found.ids, found.finished) == (found.beams[0].ids, found.beams[0].finished)
        lengths += [len(beam.ids) for beam in found.beams]
    return lengths


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped-tied"])
def test_the_texts_are_theirs(name: str, tmp_path: Path) -> None:
    loaded = softened(tiny_model(name))
    write_huggingface(loaded, tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    requests = [
        Request(
            prompt=[(13 * number + 5) % 300, 9, 200][: 1 + number % 3],
            sampling=GREEDY,
            max_new_tokens=(1, 17, 12)[number % 3],
            num_beams=(2, 3, 5)[number % 3],
            length_penalty=(1.0, 0.0, 2.0, -0.5)[number % 4],
            stop_ids=((), (299,), (17, 299), tuple(range(0, 300, 12)))[number % 4],
        )
        for number in range(12)
    ]
    lengths = assert_equal(Engine(loaded, max_batch_size=11, max_step_tokens=22), model, requests)
    assert len(set(lengths)) > 4, "the texts end too much alike to prove anything"


def test_a_real_model_writes_their_story(shared_data: Path) -> None:
    folder = shared_data / "models" / "stories260K"
    loaded = read_huggingface(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    full_stops = tuple(number for number in range(512) if b"." in loaded.tokenizer.token_bytes(number))
    requests = [
        Request(prompt=[1], sampling=GREEDY, max_new_tokens=40, num_beams=4),
        Request(prompt=[1, 403], sampling=GREEDY, max_new_tokens=60, num_beams=3, stop_ids=full_stops),
    ]
    assert_equal(Engine(loaded), model, requests)
