"""``PUT /api`` answers as Megatron-LM's server does."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request
from groundup.models import lm_head
from groundup.tokens.tokenizer.word_list import integers
from tests.served import Served
from tests.tiny import END, spelling_model, tiny_model, tiny_tokenizer

PROMPT = "the cat"


def test_text_segments_and_greedy_tokens(served: Served) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode(PROMPT)
    (expected,) = Engine(tiny_model("gpt2")).generate(
        [ids], sampling=Sampling(temperature=0), max_new_tokens=5, stop_ids=[tokenizer.end_of_document_id]
    )
    status, answer = served.ask("PUT", "/api", {"prompts": [PROMPT], "tokens_to_generate": 5, "top_k": 1})
    assert status == 200
    assert answer["text"] == [PROMPT + expected.text]
    segments = [tokenizer.token_bytes(number).decode(errors="replace") for number in (*ids, *expected.ids)]
    assert answer["segments"] == [segments]
    assert answer["logprobs"] is None
    assert list(answer) == ["logprobs", "segments", "text"]


def test_the_curl_line_of_the_tutorial(served: Served) -> None:
    body = b'{"prompts":["Hello world"], "tokens_to_generate":1}'
    status, answer = served.ask("PUT", "/api", body, {"Content-Type": "application/json; charset=UTF-8"})
    assert status == 200
    assert answer["text"][0].startswith("Hello world")
    assert len(answer["segments"][0]) == len(tiny_tokenizer().encode("Hello world")) + 1


def test_several_prompts_of_different_lengths_and_a_seed(served: Served) -> None:
    body = {"prompts": ["a", "the cat sat on the mat"], "tokens_to_generate": 9, "random_seed": 7}
    first = served.ask("PUT", "/api", body)
    assert first[0] == 200
    assert [text.startswith(prompt) for text, prompt in zip(first[1]["text"], body["prompts"], strict=True)]
    assert served.ask("PUT", "/api", body) == first
    assert served.ask("PUT", "/api", {**body, "random_seed": 8}) != first


def test_the_end_of_the_document_is_shown_and_begins_an_empty_prompt(served: Served) -> None:
    status, answer = served.ask(
        "PUT", "/api", {"prompts": [""], "add_BOS": True, "tokens_to_generate": 2, "top_k": 1}
    )
    assert status == 200
    assert answer["segments"][0][0] == END
    assert answer["text"][0].startswith(END)


@pytest.mark.parametrize(
    ("text", "ends", "fields", "expected"),
    [
        ("ab\n", False, {"stop_on_eol": True}, "ab\n"),
        ("ab\n", False, {}, "ab\nab\nab"),
        ("ab\n", False, {"stop_on_double_eol": True}, "ab\nab\nab"),
        ("ab", True, {"stop_on_eol": True}, f"ab{END}"),
        ("ab", True, {}, f"ab{END}"),
    ],
)
def test_a_text_ends_with_its_line(text: str, ends: bool, fields: dict[str, bool], expected: str) -> None:
    with Served(spelling_model(text, ends=ends)) as served:
        body = {"prompts": ["a"], "tokens_to_generate": 7, "top_k": 1, **fields}
        assert served.ask("PUT", "/api", body)[1]["text"] == [expected]
        served.wait_until(served.is_idle)


def test_two_line_breaks_end_a_text() -> None:
    """The second may be the first that is generated."""
    with Served(spelling_model("\n")) as served:
        body = {"prompts": ["a\n"], "tokens_to_generate": 7, "top_k": 1, "stop_on_double_eol": True}
        assert served.ask("PUT", "/api", body)[1]["text"] == ["a\n\n"]


def test_answers_as_recorded(served: Served, shared_data: Path) -> None:
    """Every rule with its text and status; whole answers by their shape only: the model is another."""
    recorded = json.loads(
        (shared_data.parent / "reference" / "megatron" / "misc" / "rest_api_992da75.json").read_text()
    )
    seen = 0
    for one in recorded:
        request = one.get("request")
        if request is None:
            continue
        if request.get("prompts") == '<129 times "a">':
            request["prompts"] = ["a"] * 129
        if isinstance(one["body"], str):
            assert served.ask("PUT", "/api", request) == (one["status"], one["body"]), request
            seen += 1
    assert seen > 25
    assert served.ask("POST", "/api", {})[0] == 405
    assert served.ask("POST", "/api", {})[1]["message"] == "The method is not allowed for the requested URL."


def test_a_prompt_too_long_for_the_model_is_refused_in_its_words(served: Served) -> None:
    expected = "Length of prompt + tokens_to_generate longer than allowed"
    assert served.ask("PUT", "/api", {"prompts": ["a"], "tokens_to_generate": 64}) == (200, expected)
    assert served.ask("PUT", "/api", {"prompts": ["a"], "tokens_to_generate": 63})[1] != expected


def test_log_probabilities_of_prompt_and_text_are_the_model_s(served: Served) -> None:
    """Of all tokens but the first; without new tokens it scores a text."""
    loaded = tiny_model("gpt2")
    body = {"prompts": [PROMPT, "a dog"], "tokens_to_generate": 5, "logprobs": True, "top_k": 1}
    status, answer = served.ask("PUT", "/api", body)
    assert status == 200
    for text, segments, found in zip(answer["text"], answer["segments"], answer["logprobs"], strict=True):
        assert len(found) == len(segments) - 1
        score = {"prompts": [text], "tokens_to_generate": 0, "logprobs": True}
        ids = loaded.tokenizer.encode(text)
        if "\ufffd" not in text and len(ids) == len(segments):
            assert served.ask("PUT", "/api", score)[1]["logprobs"][0] == pytest.approx(found, abs=1e-3)
    ids = loaded.tokenizer.encode(PROMPT)
    with torch.no_grad():
        logits_TV = lm_head(loaded.model, loaded.model(torch.tensor([ids])), vocab_size=300)[0]
    expected = logits_TV.log_softmax(-1)[range(len(ids) - 1), ids[1:]]
    assert answer["logprobs"][0][: len(ids) - 1] == pytest.approx(expected.tolist(), abs=1e-3)


def test_the_end_of_the_document_has_a_log_probability() -> None:
    with Served(spelling_model("ab", ends=True)) as served:
        body = {"prompts": ["a"], "tokens_to_generate": 9, "top_k": 1, "logprobs": True}
        answer = served.ask("PUT", "/api", body)[1]
        assert answer["segments"] == [["a", "b", END]]
        assert len(answer["logprobs"][0]) == 2


def test_beams(served: Served) -> None:
    tokenizer = tiny_tokenizer()
    request = Request(
        prompt=tokenizer.encode(PROMPT),
        sampling=Sampling(temperature=0),
        max_new_tokens=6,
        stop_ids=[13],
        num_beams=3,
        length_penalty=0.5,
    )
    (expected,) = Engine(tiny_model("gpt2")).complete([request])
    asked = {"prompts": [PROMPT], "tokens_to_generate": 6, "stop_token": 13, "length_penalty": 0.5}
    status, answer = served.ask("PUT", "/api", {**asked, "beam_width": 3})
    assert status == 200
    assert answer["scores"] == pytest.approx([beam.score for beam in expected.beams], abs=1e-4)
    assert answer["text"] == [PROMPT + beam.text for beam in expected.beams]
    alone = served.ask("PUT", "/api", {**asked, "beam_width": 1})[1]
    greedy = served.ask("PUT", "/api", {**asked, "top_k": 1, "logprobs": True})[1]
    new = greedy["logprobs"][0][-6:]
    assert alone["text"] == greedy["text"]
    assert alone["scores"] == pytest.approx([sum(new) / 6**0.5], abs=1e-4)
    for change in ({"beam_width": 3, "length_penalty": 1e9}, {"beam_width": 1000}):
        status, refusal = served.ask("PUT", "/api", {**asked, **change})
        assert (status, refusal["error"]["param"]) == (422, list(change)[-1])


def test_top_p_decays_to_its_bound(served: Served) -> None:
    """To next to nothing, it leaves the most probable token from the second on."""
    body = {"prompts": [PROMPT], "tokens_to_generate": 12, "top_p": 0.9}
    first = tiny_tokenizer().encode(PROMPT)
    texts = set()
    for seed in range(6):
        asked = {**body, "random_seed": seed, "top_p_decay": 0.0001}
        segments = served.ask("PUT", "/api", asked)[1]["segments"][0]
        forced = {"prompts": [PROMPT + segments[len(first)]], "tokens_to_generate": 11, "top_k": 1}
        if "\ufffd" not in segments[len(first)]:
            greedy = served.ask("PUT", "/api", forced)[1]["segments"][0]
            assert segments[-11:] == greedy[-11:] or len(greedy) != len(segments)
        bounded = {**asked, "top_p_bound": 0.9}
        assert served.ask("PUT", "/api", bounded) == served.ask("PUT", "/api", {**body, "random_seed": seed})
        texts.add(tuple(segments))
    assert len(texts) > 1


def test_no_newline_after_a_colon() -> None:
    with Served(spelling_model("a:\n")) as served:
        body = {"prompts": ["a"], "tokens_to_generate": 3, "top_k": 1}
        assert served.ask("PUT", "/api", body)[1]["text"] == ["a:\na"]
        prevented = served.ask(
            "PUT", "/api", {**body, "prevent_newline_after_colon": True, "logprobs": True}
        )[1]
        assert prevented["segments"][0][:2] == ["a", ":"]
        assert prevented["segments"][0][2] != "\n"
        assert all(value > -1e9 for value in prevented["logprobs"][0])


def test_a_model_of_bare_ids_is_asked_in_numbers() -> None:
    loaded = dataclasses.replace(tiny_model("gpt2"), tokenizer=integers(300))
    fields = {"tokens_to_generate": 3, "top_k": 1}
    with Served(loaded) as one:
        status, answer = one.ask("PUT", "/api", {"prompts": ["5 9"], **fields})
        assert status == 200
        ids = [int(segment) for segment in answer["segments"][0]]
        assert ids[:2] == [5, 9]
        assert answer["text"][0].split() == [str(number) for number in ids]
        body = {"prompt": [5, 9], "max_tokens": 3, "temperature": 0}
        status, completion = one.ask("POST", "/v1/completions", body)
        assert (status, completion["choices"][0]["text"]) == (
            200,
            "".join(f" {number}" for number in ids[2:]),
        )
        status, answer = one.ask("PUT", "/api", {"prompts": ["the cat"], **fields})
        assert (status, "'the' is no token id" in answer["message"]) == (422, True)
        status, answer = one.ask(
            "PUT", "/api", {"prompts": ["5"], **fields, "prevent_newline_after_colon": True}
        )
        assert (status, "the vocabulary has not both" in answer["message"]) == (422, True)
