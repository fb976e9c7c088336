"""Clients that go, ask too much, or fail harm nobody else; the end of the service is orderly."""

import http.client
import json
import logging
import socket
import threading
import time

import pytest
import torch

from groundup.serve.service import Limits
from tests.served import Served
from tests.tiny import spelling_model, tiny_model

SMALL = Limits(request_bytes=2000, prompt_tokens=20, new_tokens=30, texts=4, waiting=1)
ENDLESS = {"prompt": "a", "max_tokens": 10**9, "temperature": 0, "overflow": "slide"}


@pytest.fixture(scope="module")
def limited():
    """With small limits and a key."""
    with Served(tiny_model("gpt2"), limits=SMALL, api_key="secret", max_batch_size=2) as one:
        yield one
        one.wait_until(one.is_idle)


@pytest.fixture
def endless():
    """A model that spells forever; two texts at once, one waits."""
    limits = Limits(new_tokens=10**9, waiting=1)
    with Served(spelling_model("ab"), limits=limits, max_batch_size=2) as one:
        yield one


KEY = {"Authorization": "Bearer secret"}


def begin(served: Served, path: str = "/v1/completions", **fields: object) -> http.client.HTTPConnection:
    """Sends a request and does not wait for its answer."""
    connection = served.connect()
    method = "PUT" if path == "/api" else "POST"
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, json.dumps({**ENDLESS, **fields}), headers)
    return connection


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/v1/completions", {"prompt": "x" * 2000}, 413, None),
        ("/v1/completions", {"prompt": "x" * 30}, 422, "prompt"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 31}, 422, "max_tokens"),
        ("/v1/completions", {"prompt": ["x"] * 5}, 422, "prompt"),
        ("/v1/completions", {"prompt": ["x"] * 3, "n": 2}, 422, "prompt"),
        ("/v1/completions", {"prompt": ["x"] * 4}, 429, None),
        ("/api", {"prompts": ["x" * 2000]}, 413, None),
        ("/api", {"prompts": ["x" * 30], "tokens_to_generate": 1}, 422, "prompts"),
        ("/api", {"prompts": ["x"], "tokens_to_generate": 31}, 422, "tokens_to_generate"),
        ("/api", {"prompts": ["x"] * 5, "tokens_to_generate": 1}, 422, "prompts"),
        ("/api", {"prompts": ["x"] * 4, "tokens_to_generate": 1}, 429, None),
    ],
)
def test_limits(limited: Served, path: str, body: dict[str, object], status: int, field: str | None) -> None:
    found, answer = limited.ask("PUT" if path == "/api" else "POST", path, body, KEY)
    assert (found, answer["error"]["param"]) == (status, field)
    assert answer["error"]["code"] == status
    if path == "/api":
        assert answer["message"] == answer["error"]["message"]


def test_a_body_larger_than_declared_is_refused(limited: Served) -> None:
    connection = limited.connect()
    connection.putrequest("POST", "/v1/completions")
    for name, value in {**KEY, "Transfer-Encoding": "chunked"}.items():
        connection.putheader(name, value)
    connection.endheaders()
    for _ in range(3):
        connection.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    assert connection.getresponse().status == 413
    connection.close()


def test_a_body_that_does_not_arrive_is_refused() -> None:
    with Served(tiny_model("gpt2"), limits=Limits(body_seconds=1)) as served:
        connection = served.connect()
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b'{"prompt":')
        assert connection.getresponse().status == 408
        connection.close()


def test_the_key_opens_all_but_health(limited: Served) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    for headers in ({}, {"Authorization": "Bearer Secret"}, {"Authorization": "secret"}):
        status, answer = limited.ask("POST", "/v1/completions", body, headers)
        assert (status, answer["error"]["code"]) == (401, 401)
        assert limited.ask("GET", "/metrics", None, headers)[0] == 401
        assert limited.ask("GET", "/openapi.json", None, headers)[0] == 401
    assert limited.ask("POST", "/v1/completions", body, KEY)[0] == 200
    assert limited.ask("GET", "/health") == (200, {"status": "ok", "model": "tiny"})


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"stream": True}),
        ("/v1/completions", {}),
        ("/v1/completions", {"n": 2}),
    ],
    ids=["stream", "whole", "two"],
)
def test_a_client_that_goes_frees_its_texts(endless: Served, path: str, fields: dict[str, object]) -> None:
    connection = begin(endless, path, **fields)
    endless.wait_until(lambda: endless.metric("groundup_new_tokens_total") > 5)
    if "stream" in fields:
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        response.close()
    connection.close()
    endless.wait_until(endless.is_idle)
    assert endless.metric("groundup_texts_aborted_total") == fields.get("n", 1)


def test_a_client_that_goes_while_it_waits_frees_its_place(endless: Served) -> None:
    running = begin(endless, n=2)
    endless.wait_until(lambda: endless.metric("groundup_texts_running") == 2)
    waiting = begin(endless)
    endless.wait_until(lambda: endless.metric("groundup_texts_waiting") == 1)
    status, answer = endless.ask("POST", "/v1/completions", ENDLESS)
    assert status == 429
    assert "busy" in answer["error"]["message"]
    waiting.close()
    endless.wait_until(lambda: endless.metric("groundup_texts") == 2)
    running.close()
    endless.wait_until(endless.is_idle)


def test_a_request_joins_the_running_batch_at_once(endless: Served) -> None:
    running = begin(endless)
    endless.wait_until(lambda: endless.metric("groundup_texts_running") == 1)
    status, answer = endless.ask("POST", "/v1/completions", {**ENDLESS, "max_tokens": 4})
    assert (status, answer["choices"][0]["text"]) == (200, "baba")
    assert endless.metric("groundup_texts_running") == 1
    running.close()
    endless.wait_until(endless.is_idle)


def test_a_failing_request_harms_no_other() -> None:
    """A prompt with an id whose embedding is not finite."""
    loaded = spelling_model("ab")
    with torch.no_grad():
        loaded.model.embed.tokens.weight[299] = torch.nan
    with Served(loaded, limits=Limits(new_tokens=10**9)) as served:
        running = begin(served, stream=True)
        served.wait_until(lambda: served.metric("groundup_texts_running") == 1)
        status, answer = served.ask("POST", "/v1/completions", {"prompt": [299], "max_tokens": 2})
        assert status == 500
        assert "not finite" in answer["error"]["message"]
        streamed = served.ask("POST", "/v1/completions", {"prompt": [299], "stream": True})
        assert streamed[0] == 200
        assert '"code":500' in streamed[1]
        assert served.ask("PUT", "/api", {"prompts": ["a"], "tokens_to_generate": 2})[1]["text"] == ["aba"]
        response = running.getresponse()
        lines = [response.readline() for _ in range(18)]
        assert all(json.loads(line[6:])["choices"][0]["text"] in ("a", "b") for line in lines[::2])
        running.close()
        served.wait_until(served.is_idle)


def test_draining_finishes_what_runs_and_refuses_what_comes() -> None:
    with Served(spelling_model("ab"), limits=Limits(new_tokens=10**9)) as served:
        connection = begin(served, stream=True, max_tokens=3000)
        response = connection.getresponse()
        response.readline()
        keeping = served.connect()
        keeping.connect()
        served.drain()
        served.wait_until(lambda: served.service.draining)
        assert served.ask("GET", "/health")[0] == 503
        status, answer = served.ask("PUT", "/api", {"prompts": ["a"]})
        assert status == 503
        assert "shutting down" in answer["message"]
        assert response.read().endswith(b"data: [DONE]\n\n")
        served.thread.join(60)
        assert not served.thread.is_alive()
        assert served.metric("groundup_new_tokens_total") == 3000
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", served.port), timeout=5)


def test_draining_again_ends_at_once() -> None:
    with Served(spelling_model("ab"), limits=Limits(new_tokens=10**9), drain_seconds=10**6) as served:
        connection = begin(served)
        served.wait_until(lambda: served.metric("groundup_texts_running") == 1)
        served.drain()
        served.wait_until(lambda: served.service.draining)
    connection.close()


def test_a_broken_engine_ends_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise MemoryError("no memory")

    served = Served(tiny_model("gpt2"))
    with served:
        monkeypatch.setattr(served.engine, "step", fail)
        status, answer = served.ask("POST", "/v1/completions", {"prompt": "a", "stream": False})
        assert status == 503
        assert "stopped" in answer["error"]["message"]
        served.thread.join(60)
        assert not served.thread.is_alive()
    assert isinstance(served.service.engine.failed, MemoryError)


def test_an_error_of_ours_shows_no_traceback(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("private words")

    monkeypatch.setattr(served.service, "prompt_ids", fail)
    status, answer = served.ask("POST", "/v1/completions", {"prompt": "a"})
    assert status == 500
    assert "private" not in json.dumps(answer)


def test_many_clients_at_once_get_what_each_would_alone(served: Served) -> None:
    bodies = [
        {"prompt": f"text {number}" * (number % 3 + 1), "max_tokens": 5 + number, "seed": number}
        for number in range(24)
    ]
    alone = [served.ask("POST", "/v1/completions", body)[1]["choices"] for body in bodies]
    together: dict[int, object] = {}

    def ask(number: int) -> None:
        together[number] = served.ask("POST", "/v1/completions", bodies[number])[1]["choices"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
        time.sleep(0.002)  # so that they join a batch that runs
    for thread in threads:
        thread.join()
    assert [together[number] for number in range(len(bodies))] == alone


@pytest.mark.parametrize(
    ("head", "late", "fields", "last"),
    [
        (b"Connection: close\r\nContent-Length: %d\r\n\r\n%s", b"\xff not declared", {}, b"data: "),
        (b"Content-Length: %d\r\n\r\n%s", b"\xff no request\r\n\r\n", {"max_tokens": 20}, b" 400 "),
        (b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", b"no size\r\n", {}, b" 400 "),
    ],
    ids=["no more is expected", "next request", "body"],
)
def test_malformed_bytes_that_come_late(
    endless: Served,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    head: bytes,
    late: bytes,
    fields: dict[str, object],
    last: bytes,
) -> None:
    monkeypatch.setattr(logging.getLogger("groundup"), "propagate", True)
    body = json.dumps({**ENDLESS, "stream": True, **fields}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + head
    with socket.create_connection(("127.0.0.1", endless.port), timeout=60) as client:
        client.sendall(request % (len(body), body))
        answer = b""
        while b"chunked" not in head and b"data: " not in answer:
            answer += client.recv(1 << 16)
        client.sendall(late)
        while more := client.recv(1 << 16):
            answer = answer[-1000:] + more
    assert last in answer
    endless.wait_until(endless.is_idle)
    assert endless.ask("GET", "/health")[0] == 200
    told = [record.getMessage() for record in caplog.records if not record.exc_info]
    assert len(told) == len(caplog.records)
    assert len(set(told)) == (last == b"data: ")
    assert all("127.0.0.1" in line and "\n" not in line for line in told)
